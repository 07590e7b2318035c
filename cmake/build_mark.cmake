# PENSTOCK_BUILD_MARK tells one build from another where they must fit to the byte: the library and modules of it that
# are loaded at run time. It follows from the headers that both include, from the compiler and from its options.
file(GLOB contract CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/include/penstock/*.h ${PROJECT_SOURCE_DIR}/src/base/*.h ${PROJECT_SOURCE_DIR}/src/cuda/*.h
  ${PROJECT_SOURCE_DIR}/src/engine/*.h ${PROJECT_SOURCE_DIR}/src/memory/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${contract})
set(marks ${PROJECT_VERSION} ${CMAKE_SYSTEM_PROCESSOR} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}
  ${CMAKE_BUILD_TYPE} ${CMAKE_CXX_FLAGS} ${PENSTOCK_SANITIZE})
foreach(header ${contract})
  file(SHA256 ${header} mark)
  list(APPEND marks ${mark})
endforeach()
string(SHA256 mark "${marks}")
string(SUBSTRING ${mark} 0 16 mark)
set(PENSTOCK_BUILD_MARK PENSTOCK_BUILD_MARK="${PROJECT_VERSION}-${mark}")
