# Every target of ours: warnings, which a project that embeds this one does not get as errors; sanitizers where asked for.
add_library(penstock_compile_options INTERFACE)
target_compile_options(penstock_compile_options INTERFACE
  -Wall -Wextra -Wpedantic $<IF:$<BOOL:${PENSTOCK_WERROR}>,-Werror,-Wno-error> -Wshadow -Wconversion -Wno-sign-conversion
  # Members that an initializer leaves out have defaults of their own.
  -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers
  # GCC 12 sees overlaps in "literal" + std::string that aren't there (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # Newer Clangs warn of what stable_sort of GCC 12's library calls.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
  # Where files are compiled together, Clang warns of a local name that is also another file's.
  $<$<AND:$<CXX_COMPILER_ID:Clang>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-shadow>
  # GCC collects its garbage from here on, in kilobytes: most files end before, a twentieth sooner.
  $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)
if(PENSTOCK_SANITIZE)
  target_compile_options(penstock_compile_options INTERFACE
    -fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    # With the sanitizers' own code in between, GCC can't follow initialization any more.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  # Checks of memory as calls instead of inline: the same findings, in half the time to compile.
  if(PENSTOCK_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(penstock_compile_options INTERFACE --param=asan-instrumentation-with-call-threshold=0)
  endif()
  target_link_options(penstock_compile_options INTERFACE -fsanitize=${PENSTOCK_SANITIZE})
  # Twenty executables with the whole library in each: a third of the time.
  find_program(PENSTOCK_LLD ld.lld)
  if(PENSTOCK_LLD)
    target_link_options(penstock_compile_options INTERFACE -fuse-ld=lld)
  endif()
endif()
