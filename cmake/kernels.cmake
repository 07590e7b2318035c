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
  add_custom_command(OUTPUT ${kernels_fatbin}
    COMMAND ${PENSTOCK_NVCC} -std=c++17 -O3 --expt-relaxed-constexpr -Werror all-warnings -fatbin
            -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
            -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90
            -gencode arch=compute_75,code=compute_75
            ${source} -o ${kernels_fatbin}
    DEPENDS ${source} ${ARGN} VERBATIM)
  configure_file(${CMAKE_CURRENT_SOURCE_DIR}/cuda/kernels_image.cc.in kernels_image.cc @ONLY)
  set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/kernels_image.cc PROPERTIES OBJECT_DEPENDS ${kernels_fatbin})
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/kernels_image.cc)
  target_compile_definitions(${target} PRIVATE PENSTOCK_HAS_KERNELS=1)
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
