# Compiles csrc/cuda/ as plain C++, for tests without a GPU: see tests/csrc/emulation/device.h.
# Libraries that stand in for NCCL come with it: see tests/csrc/nccl/fake_nccl.cc.

# An object library hvd_sparse_cuda, and HVD_SPARSE_CUDA_TESTS: its tests.
macro(hvd_sparse_emulate_cuda)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  set(_emulation "${CMAKE_CURRENT_SOURCE_DIR}/tests/csrc/emulation")
  set(_made "${CMAKE_CURRENT_BINARY_DIR}/emulation")
  set(_implicit -include "${_emulation}/device.h" -Wno-unknown-pragmas)  # which nvcc knows
  set(_kernels_include "${_made}" "${_emulation}")
  file(GLOB _sources CONFIGURE_DEPENDS csrc/cuda/*/*.cc)
  set(_order "${_emulation}/device.cc" "${_emulation}/memory.cc" "${_emulation}/order.cc")
  if(HVD_SPARSE_SANITIZE STREQUAL "thread")
    list(APPEND _implicit --param=tsan-distinguish-volatile=1)
    set(_checked HVD_SPARSE_ORDER_IS_CHECKED)
    set_source_files_properties(${_order} PROPERTIES COMPILE_DEFINITIONS ${_checked}
                                COMPILE_OPTIONS -fno-sanitize=thread)
  endif()
  file(GLOB _kernels RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS csrc/cuda/*/*.cu
       csrc/cuda/*/*.cuh)
  foreach(_kernel ${_kernels})
    string(REGEX REPLACE "\\.cu$" "_kernels.cc" _rewritten "${_made}/${_kernel}")
    add_custom_command(
      OUTPUT "${_rewritten}"
      COMMAND "${Python_EXECUTABLE}" "${_emulation}/rewrite_kernels.py"
              "${CMAKE_CURRENT_SOURCE_DIR}/${_kernel}" "${_rewritten}"
      DEPENDS "${_kernel}" "${_emulation}/rewrite_kernels.py")
    set_source_files_properties("${_rewritten}" PROPERTIES COMPILE_OPTIONS "${_implicit}"
                                INCLUDE_DIRECTORIES "${_kernels_include}")
    list(APPEND _sources "${_rewritten}")
  endforeach()

  add_library(hvd_sparse_cuda OBJECT ${_sources} ${_order})
  target_include_directories(hvd_sparse_cuda PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${_emulation}")
  target_compile_options(hvd_sparse_cuda PRIVATE -ffp-contract=off -fno-math-errno -Wall -Wextra)

  file(GLOB HVD_SPARSE_CUDA_TESTS CONFIGURE_DEPENDS tests/csrc/cuda/*.cc)
  list(FILTER HVD_SPARSE_CUDA_TESTS EXCLUDE REGEX "graph_capture_test")  # it has no graphs
  file(GLOB _tests CONFIGURE_DEPENDS "${_emulation}/*_test.cc")
  set_source_files_properties(${_tests} PROPERTIES COMPILE_OPTIONS "${_implicit}"
                              SKIP_PRECOMPILE_HEADERS ON)  # which would have to be included first
  set_source_files_properties(${HVD_SPARSE_CUDA_TESTS} ${_tests}
                              tests/csrc/without_nccl/devices_for_test.cc PROPERTIES
                              INCLUDE_DIRECTORIES "${_kernels_include}")
  list(APPEND HVD_SPARSE_CUDA_TESTS ${_tests})

  set(_fakes "${CMAKE_CURRENT_BINARY_DIR}/fake_nccl")
  hvd_sparse_fake_nccl(fake_nccl "")
  hvd_sparse_fake_nccl(fake_nccl_old FAKE_NCCL_VERSION=2708)  # as 2.7.8 numbers itself
  hvd_sparse_fake_nccl(fake_nccl_partial FAKE_NCCL_WITHOUT_CONFIG)
  file(GLOB _tests CONFIGURE_DEPENDS tests/csrc/nccl/*_test.cc)
  set_source_files_properties(${_tests} tests/csrc/cuda/nccl_transport_test.cc PROPERTIES
                              INCLUDE_DIRECTORIES "${_emulation}"
                              COMPILE_DEFINITIONS "FAKE_NCCL_FOLDER=\"${_fakes}\"")
  list(APPEND HVD_SPARSE_CUDA_TESTS ${_tests})
  if(NOT HVD_SPARSE_SANITIZE STREQUAL "thread")  # which alone sees whether there is an order
    list(FILTER HVD_SPARSE_CUDA_TESTS EXCLUDE REGEX "/(nccl_)?order_test")
  endif()
endmacro()

# The Python module `_core` with emulated devices, in the folder `emulated`: the objects of the module
# that was built, and this core. For tests/emulated_core.py.
macro(hvd_sparse_emulated_module)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  file(READ "${HVD_SPARSE_MODULE_BUILD}/build_info.json" _built)
  file(GLOB _sources RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS
       csrc/bindings/python_*.cc)
  if(_built MATCHES "\"mpi\": {\"built\": true, \"detail\": \"([^\"]*)\"")
    set(MPI_CXX_COMPILER "${CMAKE_MATCH_1}" CACHE FILEPATH "MPI's compiler wrapper" FORCE)
    set(HVD_SPARSE_WITH_MPI 1)
    hvd_sparse_find_mpi()
    list(APPEND _sources csrc/comm/mpi_communicator.cc)
  endif()
  list(TRANSFORM _sources PREPEND "${HVD_SPARSE_MODULE_BUILD}/CMakeFiles/_core.dir/")
  list(TRANSFORM _sources APPEND .o)
  Python_add_library(emulated_core MODULE WITH_SOABI ${_sources})
  set_target_properties(emulated_core PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME _core
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/emulated")
  target_link_libraries(emulated_core PRIVATE hvd_sparse_core)
  if(HVD_SPARSE_MPI_FOUND)
    target_link_libraries(emulated_core PRIVATE MPI::MPI_CXX)
  endif()
endmacro()

# A library that stands in for NCCL, as the tests' folder `_fakes` holds it. What it wants of the
# emulated device it finds in the program that loads it.
macro(hvd_sparse_fake_nccl name definitions)
  add_library(${name} MODULE tests/csrc/nccl/fake_nccl.cc)
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE ${hvd_sparse_test_options} -fvisibility=default)
  target_compile_definitions(${name} PRIVATE ${definitions} ${_checked})
  if(_checked)
    target_compile_options(${name} PRIVATE -fno-sanitize=thread)
  endif()
  target_link_libraries(${name} PRIVATE Threads::Threads)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${_fakes}")
  list(APPEND HVD_SPARSE_TEST_LIBRARIES ${name})
endmacro()
