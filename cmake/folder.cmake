# penstock_folder(base DEPENDS ... PRIVATE ...): one target for one folder of src/.
#
# A folder's headers are included as "<folder>/<header>" and only by folders that depend on it: each target exposes an
# include root that holds nothing but a link to its own folder, so an include across layers does not compile.
function(penstock_folder folder)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  string(REPLACE "/" "_" target penstock_${folder})
  set(root ${CMAKE_BINARY_DIR}/layers/${target})
  get_filename_component(parent ${root}/${folder} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${folder} ${root}/${folder} SYMBOLIC)

  set(sources ${arg_SOURCES})
  list(TRANSFORM sources PREPEND ${PROJECT_SOURCE_DIR}/src/${folder}/)
  if(sources)
    add_library(${target} OBJECT ${sources})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include ${root})
    target_compile_options(${target} PRIVATE
      -ffile-prefix-map=${root}/=src/ -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
    target_link_libraries(${target} PRIVATE penstock_compile_options ${arg_PRIVATE} PUBLIC Threads::Threads)
    set_property(GLOBAL APPEND PROPERTY PENSTOCK_OBJECTS ${target})
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
