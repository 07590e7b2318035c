# cmake -D ROOT= -D BUILD= -D WAY= -D SAME= -D GENERATOR= -D CXX_COMPILER= -D FLAGS= -D DEPS= -P embed.cmake
#
# Embeds Penstock in another project, or installs a static library, as docs/installing.md says. The library is compiled as
# BUILD compiled it, in a folder as deep: so ccache has all objects but those of the CUDA layer, which is built without
# kernels here, since ccache does not keep what nvcc compiles.
#
#   SAME  a file of the variables that decide how BUILD compiles
#   WAY   add_subdirectory, FetchContent, below_static: built, linked into a program, and run
#         static: installed, and used by find_package and by pkg-config
#         defaults, everything: configured only, with the defaults, and with all options on
cmake_minimum_required(VERSION 3.25)
set(WORK ${BUILD}-embedding)
set(page_name docs/installing.md)
file(READ ${ROOT}/${page_name} page)

# run(command...): a command that must succeed. Its output is shown if it does not.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}: ${code}\n${output}")
  endif()
endfunction()

# must_say(text): that the page for users has a line that this test runs.
function(must_say text)
  string(FIND "${page}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${page_name} does not say: ${text}")
  endif()
endfunction()

find_program(ccache ccache)
if(NOT ccache AND NOT PENSTOCK_UNCACHED AND NOT WAY MATCHES "^(defaults|everything)$")
  message("skipped: without ccache, the library would be compiled again")
  return()
endif()
if(ccache)
  set(launcher ${ROOT}/cmake/cached.sh ${ROOT} ${ccache})
  set(ENV{CMAKE_C_COMPILER_LAUNCHER} "${launcher}")
  set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${launcher}")
endif()
set(same -G ${GENERATOR} -C ${SAME} -D PENSTOCK_NVCC=OFF -D PENSTOCK_WERROR=ON -D PENSTOCK_DEPS=${DEPS})
set(parent ${CMAKE_CURRENT_LIST_DIR}/parent)
set(program ${CMAKE_CURRENT_LIST_DIR}/project/read_file.cc)
file(REMOVE_RECURSE ${WORK})

# Nothing lies outside Penstock's folder, `library`, but what the parent and CMake make.
function(check_files)
  file(GLOB_RECURSE files RELATIVE ${WORK} ${WORK}/*)
  list(FILTER files EXCLUDE REGEX
    "^(library|CMakeFiles|below|_deps/penstock-subbuild)/|^(CMakeCache.txt|build.ninja|[.]ninja_.*|cmake_install.cmake|CPack.*Config.cmake|programs/read_file|sample|install_manifest.txt|compile_commands.json|Makefile)$")
  if(files)
    message(FATAL_ERROR "outside Penstock's folder: ${files}")
  endif()
endfunction()

if(WAY MATCHES "^(add_subdirectory|FetchContent|below_static)$")
  set(options -D WAY=${WAY})
  if(WAY STREQUAL "below_static")
    set(options -D WAY=below -D BUILD_SHARED_LIBS=OFF)
  endif()
  # GTest and Python are for the tests, CLI11 for the tool.
  run(${CMAKE_COMMAND} -S ${parent} -B ${WORK} -D PENSTOCK=${ROOT} ${options} ${same}
    -D CMAKE_DISABLE_FIND_PACKAGE_GTest=ON -D CMAKE_DISABLE_FIND_PACKAGE_Python3=ON
    -D penstock_third_party_cli11_INCLUDE=OFF)
  # By its name alone, and then what the parent links with it.
  run(${CMAKE_COMMAND} --build ${WORK} --target penstock)
  file(GLOB built ${WORK}/programs/* ${WORK}/library/bin/* ${WORK}/library/penstock)
  if(built)
    message(FATAL_ERROR "the target penstock built ${built}")
  endif()
  run(${CMAKE_COMMAND} --build ${WORK})
  run(${WORK}/programs/read_file ${WORK}/sample)
  check_files()
  run(${CMAKE_COMMAND} --install ${WORK} --prefix ${WORK}/library/prefix)
  file(GLOB_RECURSE installed RELATIVE ${WORK}/library/prefix ${WORK}/library/prefix/*)
  if(NOT installed STREQUAL "bin/read_file")
    message(FATAL_ERROR "installed with the parent: ${installed}")
  endif()
elseif(WAY STREQUAL "static")
  must_say("-D BUILD_SHARED_LIBS=OFF -D PENSTOCK_TESTS=OFF -D PENSTOCK_BENCH=OFF -D PENSTOCK_TOOL=OFF")
  must_say("--target penstock\n")
  must_say("pkg-config --static --cflags --libs penstock")
  run(${CMAKE_COMMAND} -S ${ROOT} -B ${WORK} ${same} -D BUILD_SHARED_LIBS=OFF -D PENSTOCK_TESTS=OFF -D PENSTOCK_BENCH=OFF
    -D PENSTOCK_TOOL=OFF)
  run(${CMAKE_COMMAND} --build ${WORK} --target penstock)
  # Moved after it was installed, and what it was built from is out of reach.
  run(${CMAKE_COMMAND} --install ${WORK} --prefix ${WORK}/first)
  file(RENAME ${WORK}/first ${WORK}/prefix)
  file(RENAME ${WORK}/library ${WORK}/hidden)
  file(GLOB_RECURSE archive ${WORK}/prefix/*/libpenstock.*)
  if(NOT archive MATCHES "/libpenstock[.]a$")
    message(FATAL_ERROR "installed: ${archive}")
  endif()
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/project -B ${WORK}/project -G ${GENERATOR}
    -D CMAKE_CXX_COMPILER=${CXX_COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}" -D CMAKE_PREFIX_PATH=${WORK}/prefix)
  run(${CMAKE_COMMAND} --build ${WORK}/project)
  run(${WORK}/project/read_file ${WORK}/sample)
  find_program(PKG_CONFIG pkg-config)
  if(PKG_CONFIG)
    cmake_path(GET archive PARENT_PATH libraries)
    set(ENV{PKG_CONFIG_PATH} ${libraries}/pkgconfig)
    execute_process(COMMAND ${PKG_CONFIG} --static --cflags --libs penstock OUTPUT_VARIABLE pc_flags
      COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(pc_flags UNIX_COMMAND "${pc_flags}")
    separate_arguments(flags UNIX_COMMAND "${FLAGS}")
    run(${CXX_COMPILER} -std=c++20 ${flags} ${program} -o ${WORK}/by_pkg_config ${pc_flags})
    run(${WORK}/by_pkg_config ${WORK}/sample)
  else()
    message("pkg-config is not installed: the .pc file was not tried")
  endif()
elseif(WAY STREQUAL "defaults")
  must_say("add_subdirectory(third_party/penstock)")
  must_say("FetchContent_MakeAvailable(penstock)")
  # The parent has no build type, and wants its own warnings to be errors.
  run(${CMAKE_COMMAND} -S ${parent} -B ${WORK} -D PENSTOCK=${ROOT} -D WAY=FetchContent -G ${GENERATOR}
    -D CMAKE_COMPILE_WARNING_AS_ERROR=ON -D CMAKE_EXPORT_COMPILE_COMMANDS=ON -D PENSTOCK_DEPS=${DEPS})
  file(READ ${WORK}/compile_commands.json commands)
  string(REGEX MATCHALL "\"command\": [^\n]*" commands "${commands}")
  foreach(command ${commands})
    if(command MATCHES "library" AND NOT command MATCHES "-Wno-error ")
      message(FATAL_ERROR "a warning would be an error: ${command}")
    elseif(command MATCHES "-Wno-error .*-Werror")
      message(FATAL_ERROR "a warning would be an error: ${command}")
    elseif(NOT command MATCHES "library" AND NOT command MATCHES "-std=(gnu|c)[+][+](17|20).*-Werror|-Werror.*-std=")
      message(FATAL_ERROR "the parent's own flags are gone: ${command}")
    endif()
  endforeach()
  check_files()
elseif(WAY STREQUAL "everything")
  run(${CMAKE_COMMAND} -S ${parent} -B ${WORK} -D PENSTOCK=${ROOT} -D WAY=add_subdirectory ${same} -D PENSTOCK_TESTS=ON
    -D PENSTOCK_BENCH=ON -D PENSTOCK_TOOL=ON -D PENSTOCK_INSTALL=ON)
  check_files()
else()
  message(FATAL_ERROR "unknown WAY ${WAY}")
endif()
file(REMOVE_RECURSE ${WORK})
