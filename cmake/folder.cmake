# penstock_folder(base [COLD] SOURCES ... [HOT ...] DEPENDS ... PRIVATE ...): one target for one folder of src/.
#
# A folder's headers are included as "<folder>/<header>" and only by folders that depend on it: each target exposes an
# include root that holds nothing but a link to its own folder, so an include across layers does not compile.
#
# COLD folders do no work by the byte, but for the sources that are HOT. They are optimized less, since that is quicker to
# compile; under a sanitizer, where most of the time goes into compiling, not at all.
function(penstock_folder folder)
  cmake_parse_arguments(arg "COLD" "" "SOURCES;HOT;DEPENDS;PRIVATE" ${ARGN})
  string(REPLACE "/" "_" target penstock_${folder})
  set(root ${library_binary_dir}/layers/${target})
  get_filename_component(parent ${root}/${folder} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${folder} ${root}/${folder} SYMBOLIC)

  set(sources ${arg_SOURCES} ${arg_HOT})
  list(TRANSFORM sources PREPEND ${PROJECT_SOURCE_DIR}/src/${folder}/)
  if(sources)
    add_library(${target} OBJECT ${sources})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include ${root})
    target_compile_options(${target} PRIVATE
      -ffile-prefix-map=${root}/=src/ -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
    target_link_libraries(${target} PRIVATE penstock_compile_options ${arg_PRIVATE} PUBLIC Threads::Threads)
    set_property(GLOBAL APPEND PROPERTY PENSTOCK_OBJECTS ${target})
    set(optimization hot)
    if(arg_COLD AND PENSTOCK_SANITIZE)
      set(optimization cold)
      target_compile_options(${target} PRIVATE -O0)
    elseif(arg_COLD AND CMAKE_BUILD_TYPE STREQUAL Release)
      set(optimization cold)
      target_compile_options(${target} PRIVATE -O1)
      # They don't share what was precompiled for less.
      list(TRANSFORM arg_HOT PREPEND ${PROJECT_SOURCE_DIR}/src/${folder}/)
      set_source_files_properties(${arg_HOT} PROPERTIES COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
    endif()
    penstock_precompile(${target} ${optimization})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR}/include ${root})
    set(scope INTERFACE)
  endif()
  foreach(dependency ${arg_DEPENDS})
    string(REPLACE "/" "_" dependency_target penstock_${dependency})
    # Headers only: objects are collected once, in the library.
    target_include_directories(${target} ${scope}
      $<TARGET_PROPERTY:${dependency_target},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
endfunction()

# penstock_precompile(target optimization): reading these headers takes longer than most of our files. None of ours is
# among them. Targets that are optimized alike share what the first has compiled.
function(penstock_precompile target optimization)
  get_property(owner GLOBAL PROPERTY PENSTOCK_PRECOMPILED_${optimization})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE
      <algorithm> <array> <atomic> <charconv> <chrono> <condition_variable> <filesystem> <fstream> <functional> <map>
      <memory> <mutex> <optional> <span> <string> <string_view> <thread> <vector>)
    set_property(GLOBAL PROPERTY PENSTOCK_PRECOMPILED_${optimization} ${target})
  endif()
  # With a precompiled header, GCC 12 forgets that warnings are off in the standard library's own code, and sees
  # accesses out of bounds there that can't happen.
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-array-bounds>)
endfunction()
