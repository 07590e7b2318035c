#include "services/rows/npy.h"

#include <gtest/gtest.h>

namespace penstock::rows {
namespace {

std::string npy_file(const std::string& literal, int major = 1) {
  std::string header = literal + "\n";
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file += static_cast<char>(header.size() >> 8 * i);
  return file + header;
}

Result<NpyArray> parse(const std::string& file, std::uint64_t more = 1 << 20) {
  return parse_npy(file, file.size() + more);
}

TEST(Npy, has_the_type_the_shape_and_where_the_data_begins) {
  for (const int major : {1, 2, 3}) {
    const std::string file = npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 40), }", major);
    const auto array = parse(file);
    ASSERT_TRUE(array.ok()) << array.error().message;
    EXPECT_EQ(array->dtype, "<f4");
    EXPECT_EQ(array->shape, (std::vector<std::uint64_t>{3, 40}));
    EXPECT_EQ(array->element_bytes, 4U);
    EXPECT_EQ(array->data_offset, file.size());
    EXPECT_EQ(array->data_bytes, 480U);
  }
}

TEST(Npy, shapes_and_types_are_those_that_numpy_writes) {
  const auto bytes = [](const std::string& type, const std::string& shape) {
    const auto array = parse(npy_file("{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }"));
    return array ? array->data_bytes : UINT64_MAX;
  };
  EXPECT_EQ(bytes("|u1", "(7,)"), 7U);
  EXPECT_EQ(bytes("|u1", "()"), 1U);
  EXPECT_EQ(bytes(">i8", "(2, 3)"), 48U);
  EXPECT_EQ(bytes("<U5", "(2,)"), 40U);
  EXPECT_EQ(bytes("|S5", "(2,)"), 10U);
  EXPECT_EQ(bytes("<M8[ns]", "(2,)"), 16U);
  EXPECT_EQ(bytes("<f4", "(0, 9)"), 0U);
  EXPECT_EQ(bytes("<f4", "(3L, 4L)"), 48U);
}

TEST(Npy, a_type_has_one_name_however_its_order_is_written) {
  const auto name = [](const std::string& type) {
    return parse(npy_file("{'descr': '" + type + "', 'fortran_order': False, 'shape': (2,), }")).value().dtype;
  };
  for (const char* const order : {"<", "=", "|"}) {
    EXPECT_EQ(name(order + std::string("f4")), "<f4");
    EXPECT_EQ(name(order + std::string("M8[ns]")), "<M8[ns]");
    EXPECT_EQ(name(order + std::string("U1")), "<U1");
    EXPECT_EQ(name(order + std::string("i1")), "|i1");
    EXPECT_EQ(name(order + std::string("S4")), "|S4");
  }
  EXPECT_EQ(name(">f4"), ">f4");
  EXPECT_EQ(name(">u1"), "|u1");
  EXPECT_EQ(name("|b1"), "|b1");
}

TEST(Npy, what_has_no_rows_of_bytes_is_refused_by_its_name) {
  const auto code = [](const std::string& literal) { return parse(npy_file(literal)).error().code; };
  EXPECT_EQ(code("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"), Code::unsupported);
  EXPECT_EQ(code("{'descr': '|O8', 'fortran_order': False, 'shape': (3,), }"), Code::unsupported);
  EXPECT_EQ(code("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }"), Code::unsupported);
  EXPECT_EQ(code("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }"), Code::unsupported);
  EXPECT_TRUE(parse(npy_file("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 1), }")).ok());
  EXPECT_EQ(parse(npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 4)).error().code,
            Code::unsupported);
}

TEST(Npy, a_header_that_is_not_exact_is_refused) {
  for (const char* literal : {
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } x",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3 4), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
           "{'descr': '<f4', 'fortran_order': False, }",
           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
           "{'descr': '<f4', 'fortran_order': No, 'shape': (3,), }",
           "{'descr': '<q4', 'fortran_order': False, 'shape': (3,), }",
           "{'descr': '<f4x', 'fortran_order': False, 'shape': (3,), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 2), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)",
           "['descr']",
       }) {
    const auto array = parse(npy_file(literal));
    ASSERT_FALSE(array.ok()) << literal;
    EXPECT_EQ(array.error().code, Code::invalid_argument) << literal;
    EXPECT_FALSE(array.error().hint.empty());
  }
}

TEST(Npy, a_file_that_ends_early_is_truncated) {
  const std::string file = npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 40), }");
  EXPECT_EQ(parse_npy(file, file.size() + 479).error().code, Code::truncated);
  EXPECT_TRUE(parse_npy(file, file.size() + 480).ok());
  EXPECT_EQ(npy_header_bytes(file.substr(0, 11), 11).error().code, Code::truncated);
  EXPECT_EQ(npy_header_bytes(file.substr(0, 12), 20).error().code, Code::truncated);
  EXPECT_EQ(npy_header_bytes("PK", 2).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::rows
