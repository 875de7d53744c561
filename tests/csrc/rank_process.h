/// A rank as a process of its own, for tests in which processes die.
///
/// The test sends it one-letter commands and reads its answers, one line each.

#ifndef HVD_SPARSE_TESTS_CSRC_RANK_PROCESS_H_
#define HVD_SPARSE_TESTS_CSRC_RANK_PROCESS_H_

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace hvd_sparse {

/// The commands that reach a rank process, and the pipe for its answers.
class Instructions {
 public:
  Instructions(int in, int out) : in_(in), out_(out) {}

  /// Waits for the next command; returns 'x' once the test is gone.
  char Next() const {
    char command = 'x';
    while (::read(in_, &command, 1) < 0 && errno == EINTR) {
    }
    return command;
  }

  void Answer(const std::string& line) const {
    const std::string bytes = line + "\n";
    if (::write(out_, bytes.data(), bytes.size()) < 0) ::_exit(3);
  }

  /// Makes what this process prints to stderr an answer from now on.
  void TakeStderr() const { ::dup2(out_, STDERR_FILENO); }

 private:
  int in_, out_;
};

class RankProcess {
 public:
  /// Forks; the child runs `body` and exits with its result.
  explicit RankProcess(const std::function<int(const Instructions&)>& body) {
    int commands[2], answers[2];
    if (::pipe2(commands, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(commands[1]);
      ::close(answers[0]);
      ::alarm(120);  // does not outlive a test
      ::_exit(body(Instructions(commands[0], answers[1])));
    }
    ::close(commands[0]);
    ::close(answers[1]);
    commands_ = commands[1];
    answers_ = answers[0];
  }

  ~RankProcess() {
    Kill(SIGKILL);
    WaitForExit();
    ::close(commands_);
    ::close(answers_);
  }

  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int pid() const { return pid_; }

  void Command(char command) const {
    if (::write(commands_, &command, 1) != 1) ::abort();
  }

  /// Returns its next answer; "(none)" if there is none within `milliseconds`.
  std::string Answer(int milliseconds = 20000) const {
    std::string line;
    for (char byte = 0;;) {
      pollfd polled{answers_, POLLIN, 0};
      if (::poll(&polled, 1, milliseconds) <= 0) return "(none)";
      if (::read(answers_, &byte, 1) != 1) return "(none)";
      if (byte == '\n') return line;
      line += byte;
    }
  }

  void Kill(int signal) const {
    if (!status_) ::kill(pid_, signal);
  }

  /// Returns its exit status, negative if a signal ended it.
  int WaitForExit() {
    if (!status_) {
      int status = 0;
      ::waitpid(pid_, &status, 0);
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    return *status_;
  }

 private:
  int pid_ = 0;
  int commands_ = -1, answers_ = -1;
  std::optional<int> status_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_RANK_PROCESS_H_
