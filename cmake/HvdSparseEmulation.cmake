# Compiles csrc/cuda/ as plain C++, for tests without a GPU: see tests/csrc/emulation/device.h.

# An object library hvd_sparse_cuda, and HVD_SPARSE_CUDA_TESTS: its tests.
macro(hvd_sparse_emulate_cuda)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  set(_emulation "${CMAKE_CURRENT_SOURCE_DIR}/tests/csrc/emulation")
  set(_implicit -include "${_emulation}/device.h" -Wno-unknown-pragmas)  # which nvcc knows
  file(GLOB _kernels CONFIGURE_DEPENDS csrc/cuda/*.cu)
  file(GLOB _sources CONFIGURE_DEPENDS csrc/cuda/*.cc)
  foreach(_kernel ${_kernels})
    get_filename_component(_name "${_kernel}" NAME_WE)
    set(_rewritten "${CMAKE_CURRENT_BINARY_DIR}/emulation/${_name}_kernels.cc")
    add_custom_command(
      OUTPUT "${_rewritten}"
      COMMAND "${Python_EXECUTABLE}" "${_emulation}/rewrite_launches.py" "${_kernel}"
              "${_rewritten}"
      DEPENDS "${_kernel}" "${_emulation}/rewrite_launches.py")
    set_source_files_properties("${_rewritten}" PROPERTIES COMPILE_OPTIONS "${_implicit}")
    list(APPEND _sources "${_rewritten}")
  endforeach()
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/emulation")

  add_library(hvd_sparse_cuda OBJECT ${_sources} "${_emulation}/device.cc")
  target_include_directories(hvd_sparse_cuda PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${_emulation}")
  target_compile_options(hvd_sparse_cuda PRIVATE -ffp-contract=off -fno-math-errno -Wall -Wextra)

  file(GLOB HVD_SPARSE_CUDA_TESTS CONFIGURE_DEPENDS tests/csrc/cuda/*.cc)
  file(GLOB _tests CONFIGURE_DEPENDS "${_emulation}/*_test.cc")
  set_source_files_properties(${_tests} PROPERTIES COMPILE_OPTIONS "${_implicit}")
  set_source_files_properties(${HVD_SPARSE_CUDA_TESTS} ${_tests} PROPERTIES
                              INCLUDE_DIRECTORIES "${_emulation}")
  list(APPEND HVD_SPARSE_CUDA_TESTS ${_tests})
endmacro()
