# Kernels are built where nvcc is, for Turing and newer, and embedded; without it everything works by copies.
find_program(PENSTOCK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)

# penstock_kernels(target source [header...]): adds the fat binary of `source` to an object library.
function(penstock_kernels target source)
  if(NOT PENSTOCK_NVCC)
    message(STATUS "No nvcc: kernels are left out, scattered copies are made by the driver")
    target_compile_definitions(${target} PRIVATE PENSTOCK_HAS_KERNELS=0)
    return()
  endif()
  set(kernels_fatbin ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  set(gpus -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90
    -gencode arch=compute_75,code=compute_75)
  # No GPU runs them under a sanitizer: one form will do, which a driver could still compile for any.
  if(PENSTOCK_SANITIZE)
    set(gpus -gencode arch=compute_75,code=compute_75)
  endif()
  add_custom_command(OUTPUT ${kernels_fatbin}
    COMMAND ${PENSTOCK_NVCC} -std=c++17 -O3 --expt-relaxed-constexpr -Werror all-warnings -fatbin
            -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
            ${gpus} ${source} -o ${kernels_fatbin}
    DEPENDS ${source} ${ARGN} VERBATIM)
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels_image.cc.in kernels_image.cc @ONLY)
  # As part of a unity build, it would not be compiled again when the kernels change.
  set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/kernels_image.cc PROPERTIES
    OBJECT_DEPENDS ${kernels_fatbin} SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/kernels_image.cc)
  target_compile_definitions(${target} PRIVATE PENSTOCK_HAS_KERNELS=1)
endfunction()

# penstock_ptx(target source): adds the kernels of a test or a benchmark to it, as a text `penstock_<name of the source>`
# of PTX, which the driver compiles for the GPU that there is. Without nvcc the text is empty; so it is under a sanitizer,
# where no GPU would run them.
function(penstock_ptx target source)
  get_filename_component(name ${source} NAME_WE)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}_image.cc)
  set(incbin)
  if(PENSTOCK_NVCC AND NOT PENSTOCK_SANITIZE)
    set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${name}.ptx)
    set(incbin ".incbin \"${ptx}\"")
    # Made again when a header has changed that it includes.
    add_custom_command(OUTPUT ${ptx}
      COMMAND ${PENSTOCK_NVCC} -ptx -arch=compute_75 -Werror all-warnings -I${PROJECT_SOURCE_DIR}/include
              -I${PROJECT_SOURCE_DIR}/src ${source} -MD -MF ${ptx}.d -o ${ptx}
      DEPENDS ${source} DEPFILE ${ptx}.d VERBATIM)
    set_source_files_properties(${image} PROPERTIES OBJECT_DEPENDS ${ptx})
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/ptx_image.cc.in ${image} @ONLY)
  target_sources(${target} PRIVATE ${image})
  set_source_files_properties(${image} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Ranges for NVIDIA's profilers, where the header-only NVTX is.
find_path(PENSTOCK_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include)
function(penstock_nvtx target)
  if(PENSTOCK_NVTX_INCLUDE)
    target_include_directories(${target} SYSTEM PRIVATE ${PENSTOCK_NVTX_INCLUDE})
    target_compile_definitions(${target} PRIVATE PENSTOCK_HAS_NVTX=1)
  else()
    target_compile_definitions(${target} PRIVATE PENSTOCK_HAS_NVTX=0)
  endif()
endfunction()
