# The ROCm kernels, as the target strata_gdn_hip: with hipcc a static library of what setup.py compiles; without it, by
# clang and without ROCm, device code alone, a code object a source and architecture in code_objects/.
#
# CMake's own HIP language wants ROCm; the commands here are the same for both compilers.
find_program(GDN_HIPCC hipcc HINTS $ENV{ROCM_HOME}/bin $ENV{ROCM_PATH}/bin /opt/rocm/bin)
find_program(GDN_HIP_CLANG NAMES clang++-22 clang++)

read_list(hip_archs GDN_ALL_HIP_ARCHS)
set(GDN_HIP_ARCHS "${GDN_ALL_HIP_ARCHS}" CACHE STRING "AMD architectures to compile for")
read_list(gpu hip_sources)
read_list(hip hip_only_sources)
list(APPEND hip_sources ${hip_only_sources})

# tools/build_backend/rocm_toolkit.py says why.
set(hip_flags -O3 -std=c++17 -fno-fast-math -fhip-fp32-correctly-rounded-divide-sqrt -fno-gpu-flush-denormals-to-zero
              ${numerics} ${warnings} -I${CMAKE_SOURCE_DIR}/csrc)

# clang tells of the headers that the host side includes, and of none for device code alone: every header it is.
file(GLOB hip_headers CONFIGURE_DEPENDS csrc/core/*.h csrc/cuda/*.h csrc/cuda/*.cuh csrc/hip/*.h
                                        tools/rdna/include/hip/*.h)

# Compiles a source with the compiler and flags that follow its name and the output's.
function(add_hip_output source output)
  get_filename_component(folder ${output} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  set(path ${CMAKE_SOURCE_DIR}/csrc/${source})
  add_custom_command(OUTPUT ${output} DEPENDS ${path} ${hip_headers} VERBATIM COMMAND ${ARGN} -c ${path} -o ${output})
endfunction()

set(outputs)
if(GDN_HIPCC)
  list(TRANSFORM GDN_HIP_ARCHS PREPEND --offload-arch= OUTPUT_VARIABLE offload)
  foreach(source ${hip_sources})
    set(output ${CMAKE_BINARY_DIR}/hip/${source}.o)
    add_hip_output(${source} ${output} ${GDN_HIPCC} -fPIC -fvisibility=hidden ${hip_flags} ${offload})
    list(APPEND outputs ${output})
  endforeach()
  add_library(strata_gdn_hip STATIC ${outputs})
  set_target_properties(strata_gdn_hip PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(strata_gdn_hip PUBLIC csrc)
elseif(GDN_HIP_CLANG)
  set(device_only -x hip -nogpuinc -nogpulib -fms-extensions -D__HIPCC__ -I${CMAKE_SOURCE_DIR}/tools/rdna/include
                  --cuda-device-only --no-gpu-bundle-output)
  list(REMOVE_ITEM hip_sources cuda/runtime.cu)  # the host's alone
  foreach(arch ${GDN_HIP_ARCHS})
    foreach(source ${hip_sources})
      get_filename_component(name ${source} NAME_WE)
      set(output ${CMAKE_BINARY_DIR}/code_objects/${name}_${arch}.co)
      add_hip_output(${source} ${output} ${GDN_HIP_CLANG} ${device_only} ${hip_flags} --offload-arch=${arch})
      list(APPEND outputs ${output})
    endforeach()
  endforeach()
  add_custom_target(strata_gdn_hip ALL DEPENDS ${outputs})
else()
  message(FATAL_ERROR "GDN_HIP needs hipcc or clang++ (22 knows every architecture); neither is on the PATH")
endif()
