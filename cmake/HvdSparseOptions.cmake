# Finds the optional parts that HVD_SPARSE_WITH_* ask for, and keeps a record for the doctor.

set(HVD_SPARSE_PARTS "")  # pieces of JSON, one per optional part

# Refuses a value of HVD_SPARSE_WITH_<part> other than 1, 0 and empty.
function(hvd_sparse_check_option part)
  set(value "${HVD_SPARSE_WITH_${part}}")
  if(NOT value MATCHES "^[01]?$")
    message(FATAL_ERROR "HVD_SPARSE_WITH_${part} must be 1, 0 or unset, got '${value}'")
  endif()
endfunction()

# Prints what became of `part` and remembers it.
macro(hvd_sparse_record part built detail)
  string(TOLOWER "${part}" _key)
  if(${built})
    message(STATUS "hvd_sparse: with ${part}: ${detail}")
    set(_json_bool true)
  else()
    message(STATUS "hvd_sparse: without ${part}: ${detail}")
    set(_json_bool false)
  endif()
  hvd_sparse_json_string(_detail "${detail}")
  list(APPEND HVD_SPARSE_PARTS
       "    \"${_key}\": {\"built\": ${_json_bool}, \"detail\": ${_detail}}")
endmacro()

# `text` as a JSON string.
function(hvd_sparse_json_string out text)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  set(${out} "\"${text}\"" PARENT_SCOPE)
endfunction()

# MPI by its compiler wrapper: $MPICXX, else mpicxx on PATH.
macro(hvd_sparse_find_mpi)
  hvd_sparse_check_option(MPI)
  set(HVD_SPARSE_MPI_FOUND FALSE)
  if(HVD_SPARSE_WITH_MPI STREQUAL "0")
    hvd_sparse_record(MPI FALSE "HVD_SPARSE_WITH_MPI=0")
  else()
    if(NOT MPI_CXX_COMPILER AND DEFINED ENV{MPICXX})
      set(MPI_CXX_COMPILER "$ENV{MPICXX}" CACHE FILEPATH "MPI's compiler wrapper")
    endif()
    set(MPI_CXX_SKIP_MPICXX ON)  # the C interface is enough
    find_package(MPI QUIET COMPONENTS CXX)
    if(MPI_CXX_FOUND)
      set(HVD_SPARSE_MPI_FOUND TRUE)
      hvd_sparse_record(MPI TRUE "${MPI_CXX_COMPILER}")
    elseif(HVD_SPARSE_WITH_MPI)
      message(FATAL_ERROR
        "HVD_SPARSE_WITH_MPI=1, but no MPI was found. Put mpicxx on PATH (the MPI that Horovod was "
        "built with), name it by MPICXX=/path/to/mpicxx, or build with HVD_SPARSE_WITH_MPI=0.")
    else()
      hvd_sparse_record(MPI FALSE "no mpicxx on PATH")
    endif()
  endif()
endmacro()

# TensorFlow, as this Python imports it: what it wants libraries of ops to be compiled with.
macro(hvd_sparse_find_tensorflow)
  hvd_sparse_check_option(TENSORFLOW)
  set(HVD_SPARSE_TENSORFLOW_FOUND FALSE)
  if(HVD_SPARSE_WITH_TENSORFLOW STREQUAL "0")
    hvd_sparse_record(TENSORFLOW FALSE "HVD_SPARSE_WITH_TENSORFLOW=0")
  else()
    execute_process(
      COMMAND "${CMAKE_COMMAND}" -E env TF_CPP_MIN_LOG_LEVEL=3 "${Python_EXECUTABLE}" -c
        "import shlex, tensorflow as tf; s = tf.sysconfig; \
flags = s.get_compile_flags(), s.get_link_flags(); \
print(';'.join([tf.__version__, *map(shlex.join, flags)]))"
      OUTPUT_VARIABLE _answer ERROR_VARIABLE _problem RESULT_VARIABLE _status
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(_status EQUAL 0)
      list(GET _answer 0 HVD_SPARSE_TENSORFLOW_VERSION)
      list(GET _answer 1 _compile)
      list(GET _answer 2 _link)
      separate_arguments(HVD_SPARSE_TENSORFLOW_COMPILE_FLAGS UNIX_COMMAND "${_compile}")
      separate_arguments(HVD_SPARSE_TENSORFLOW_LINK_FLAGS UNIX_COMMAND "${_link}")
      # Warnings of TensorFlow's headers are not ours.
      list(TRANSFORM HVD_SPARSE_TENSORFLOW_COMPILE_FLAGS REPLACE "^-I" "-isystem")
      set(HVD_SPARSE_TENSORFLOW_FOUND TRUE)
      hvd_sparse_record(TENSORFLOW TRUE "${HVD_SPARSE_TENSORFLOW_VERSION}")
    elseif(HVD_SPARSE_WITH_TENSORFLOW)
      message(FATAL_ERROR
        "HVD_SPARSE_WITH_TENSORFLOW=1, but ${Python_EXECUTABLE} cannot import tensorflow: "
        "${_problem}\nInstall it first, and build without isolation (pip install "
        "--no-build-isolation), or build with HVD_SPARSE_WITH_TENSORFLOW=0.")
    else()
      hvd_sparse_record(TENSORFLOW FALSE "this Python cannot import tensorflow")
    endif()
  endif()
endmacro()

# The GPUs that $CUDAARCHS or CMAKE_CUDA_ARCHITECTURES asks for; empty: nobody asked. CMake caches
# nvcc's default where -D puts what a user wants, and only the entry's description tells them apart.
function(hvd_sparse_asked_architectures out)
  get_property(description CACHE CMAKE_CUDA_ARCHITECTURES PROPERTY HELPSTRING)
  if(NOT "$ENV{CUDAARCHS}" STREQUAL "")
    set(asked "$ENV{CUDAARCHS}")
  elseif(description STREQUAL "CUDA architectures")
    set(asked "")
  else()
    set(asked "${CMAKE_CUDA_ARCHITECTURES}")
  endif()
  set(${out} "${asked}" PARENT_SCOPE)
endfunction()

# nvcc: $CUDACXX, else on PATH. Asked for by name only. Where nobody names the GPUs to compile for,
# they are all that this nvcc knows from sm_70 on, and the newest as PTX, which drivers translate
# for GPUs to come.
macro(hvd_sparse_find_cuda)
  hvd_sparse_check_option(CUDA)
  set(HVD_SPARSE_CUDA_FOUND FALSE)
  if(NOT HVD_SPARSE_WITH_CUDA STREQUAL "1")
    set(HVD_SPARSE_CUDA_DETAIL "HVD_SPARSE_WITH_CUDA=1 asks for it")
  else()
    include(CheckLanguage)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      message(FATAL_ERROR
        "HVD_SPARSE_WITH_CUDA=1, but no nvcc was found that works. Put it on PATH, or name it by "
        "CUDACXX=/path/to/nvcc.")
    endif()
    hvd_sparse_asked_architectures(_asked)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 11.8)
      message(FATAL_ERROR "HVD_SPARSE_WITH_CUDA=1 takes nvcc 11.8 or newer, got "
                          "${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER})")
    endif()
    if(_asked)
      set(CMAKE_CUDA_ARCHITECTURES ${_asked})
    else()
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real)
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
        list(PREPEND CMAKE_CUDA_ARCHITECTURES 70-real)
      endif()
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
        list(APPEND CMAKE_CUDA_ARCHITECTURES 90)
      else()
        list(APPEND CMAKE_CUDA_ARCHITECTURES 90-real 100-real 120)
      endif()
    endif()
    set(HVD_SPARSE_CUDA_FOUND TRUE)
    string(REPLACE ";" " " _architectures "${CMAKE_CUDA_ARCHITECTURES}")
    set(HVD_SPARSE_CUDA_DETAIL "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${_architectures}")
  endif()
endmacro()

# NCCL is looked for when a program runs; so it comes with CUDA, and its library need not be here.
macro(hvd_sparse_choose_nccl)
  hvd_sparse_check_option(NCCL)
  set(HVD_SPARSE_NCCL_CHOSEN FALSE)
  if(HVD_SPARSE_WITH_NCCL STREQUAL "0")
    set(HVD_SPARSE_NCCL_DETAIL "HVD_SPARSE_WITH_NCCL=0")
  elseif(HVD_SPARSE_CUDA_FOUND OR HVD_SPARSE_EMULATE_CUDA)
    set(HVD_SPARSE_NCCL_CHOSEN TRUE)
    set(HVD_SPARSE_NCCL_DETAIL "loaded when a program needs it")
  elseif(HVD_SPARSE_WITH_NCCL)
    message(FATAL_ERROR "HVD_SPARSE_WITH_NCCL=1 takes HVD_SPARSE_WITH_CUDA=1, too.")
  else()
    set(HVD_SPARSE_NCCL_DETAIL "it takes CUDA")
  endif()
endmacro()

# What was built, from what and how, for `python -m hvd_sparse doctor`.
function(hvd_sparse_write_build_info path)
  hvd_sparse_json_string(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  hvd_sparse_json_string(build_type "${CMAKE_BUILD_TYPE}")
  string(REPLACE ";" ",\n" parts "${HVD_SPARSE_PARTS}")
  file(WRITE "${path}" "{\n  \"compiler\": ${compiler},\n  \"build_type\": ${build_type},\n"
                       "  \"parts\": {\n${parts}\n  }\n}\n")
endfunction()
