/// Runs a fuzz target without libFuzzer.
///
///     TARGET [--runs=N] [--seconds=S] [--seed=N]   mutate the seeds until the first finding
///     TARGET --write-seeds=FOLDER                  write the seeds as files, for libFuzzer
///     TARGET FILE...                               run these inputs, once each
///
/// Equal seeds give equal inputs. If the compiler counts edges (coverage.h), an input that
/// reaches a new one is mutated further. An input that ends the process is left in crash-TARGET.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/csrc/fuzz/coverage.h"
#include "tests/csrc/fuzz/mutation.h"
#include "tests/csrc/fuzz/target.h"

// Sanitizers abort the process by a signal, which is handled here.
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
extern "C" const char* __tsan_default_options() { return "abort_on_error=1:halt_on_error=1"; }

namespace hvd_sparse::fuzz {
namespace {

constexpr unsigned kMostSeconds = 20;  // for one input: more is a hang

struct Options {
  std::int64_t runs = -1;  // no limit
  double seconds = -1;
  std::uint32_t seed = 1;
  std::string seeds_folder;
  std::vector<std::string> files;
};

// State for the signal handler.
std::string crash_file;
const Bytes* current = nullptr;

void OnSignal(int signal) {
  const char* const why = signal == SIGALRM ? "an input took too long\n" : "an input was fatal\n";
  static_cast<void>(!::write(STDERR_FILENO, why, std::strlen(why)));
  if (current != nullptr) {
    const int file = ::open(crash_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    static_cast<void>(!::write(file, current->data(), current->size()));
    ::close(file);
  }
  ::_exit(77);
}

void RunOne(const Bytes& input) {
  const Bytes copy(input);  // of exactly its size
  current = &copy;
  ::alarm(kMostSeconds);
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
  ::alarm(0);
  current = nullptr;
}

Options Parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&](const char* name) -> const char* {
      const std::string start = std::string(name) + "=";
      return argument.rfind(start, 0) == 0 ? arguments[i] + start.size() : nullptr;
    };
    if (const char* runs = value("--runs")) {
      options.runs = std::atoll(runs);
    } else if (const char* seconds = value("--seconds")) {
      options.seconds = std::atof(seconds);
    } else if (const char* seed = value("--seed")) {
      options.seed = static_cast<std::uint32_t>(std::atoll(seed));
    } else if (const char* folder = value("--write-seeds")) {
      options.seeds_folder = folder;
    } else {
      options.files.push_back(argument);
    }
  }
  return options;
}

Bytes ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteSeeds(const std::string& folder, const std::vector<Bytes>& seeds) {
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream file(folder + "/seed" + std::to_string(i), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seeds[i].data()),
               static_cast<std::streamsize>(seeds[i].size()));
  }
}

void Fuzz(const Options& options, std::vector<Bytes> corpus) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  for (const Bytes& seed : corpus) RunOne(seed);
  const std::size_t seeds = corpus.size();
  Mutator mutator(options.seed);
  std::int64_t runs = 0;
  for (; runs != options.runs && (options.seconds < 0 || seconds() < options.seconds); ++runs) {
    Bytes input = mutator.Next(corpus);
    const std::size_t before = EdgesSeen();
    RunOne(input);
    if (EdgesSeen() > before) corpus.push_back(std::move(input));
  }
  std::printf("%lld inputs in %.1f s, %zu seeds, %zu more kept, %zu edges\n",
              static_cast<long long>(runs), seconds(), seeds, corpus.size() - seeds, EdgesSeen());
}

int Main(int count, char** arguments) {
  const Options options = Parse(count, arguments);
  const std::string name = arguments[0];
  crash_file = "crash-" + name.substr(name.rfind('/') + 1);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) {
    ::signal(signal, OnSignal);
  }
  ::signal(SIGPIPE, SIG_IGN);
  if (!options.files.empty()) {
    for (const std::string& file : options.files) RunOne(ReadFile(file));
    return 0;
  }
  if (!options.seeds_folder.empty()) {
    WriteSeeds(options.seeds_folder, Seeds());
    return 0;
  }
  if (options.runs < 0 && options.seconds < 0) {
    std::fprintf(stderr, "say --runs=N or --seconds=S, or name files\n");
    return 2;
  }
  Fuzz(options, Seeds());
  return 0;
}

}  // namespace
}  // namespace hvd_sparse::fuzz

int main(int count, char** arguments) { return hvd_sparse::fuzz::Main(count, arguments); }
