# cmake -D BUILD= -D PROJECT= -D WORK= -D COMPILER= -D GENERATOR= -D SANITIZE= -P run.cmake
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(flags)
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()

# The prefix is moved after installation, so that a path baked into the package would be noticed.
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)

run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER}
  -D CMAKE_CXX_FLAGS=${flags} -D CMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/read_file ${WORK}/build/sample)

find_program(PKG_CONFIG pkg-config)
if(NOT PKG_CONFIG)
  message("pkg-config is not installed: the .pc file was not tried")
  return()
endif()
file(GLOB_RECURSE pc ${WORK}/prefix/*/penstock.pc)
get_filename_component(pc_folder ${pc} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${pc_folder})
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs penstock OUTPUT_VARIABLE pc_flags COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(pc_flags UNIX_COMMAND "${pc_flags}")
get_filename_component(lib_folder ${pc_folder} DIRECTORY)
if(pc_flags MATCHES "-std")
  message(FATAL_ERROR "the standard is the program's own choice: ${pc_flags}")
endif()
run(${COMPILER} -std=c++20 ${flags} ${PROJECT}/read_file.cc -o ${WORK}/by_pkg_config ${pc_flags} -Wl,-rpath,${lib_folder})
run(${WORK}/by_pkg_config ${WORK}/build/sample)
