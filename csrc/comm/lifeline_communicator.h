/// The base of communicators between processes, whose failures a lifeline reports.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/comm/communicator.h"
#include "csrc/comm/lifeline.h"

namespace hvd_sparse {

class LifelineCommunicator : public Communicator {
 public:
  WaitLimits Limits() const override { return limits_; }

  void Fail(ErrorKind kind, const std::string& reason) override {
    if (lifeline_ != nullptr) lifeline_->Fail(kind, reason);
  }

  void Check() override {
    if (lifeline_ == nullptr) return;
    if (auto failure = lifeline_->CurrentFailure()) throw Error(failure->kind, failure->message);
  }

  void CheckAtEnd() override {
    if (lifeline_ == nullptr) return;
    if (auto failure = lifeline_->FailureAtEnd()) throw Error(failure->kind, failure->message);
  }

  void Committed(std::int64_t steps) override {
    if (lifeline_ != nullptr) lifeline_->Committed(steps);
  }

  void Acknowledge() override {
    if (lifeline_ != nullptr) lifeline_->Acknowledge();
  }

 protected:
  /// Without a lifeline (null) failures are not reported to or from other ranks.
  LifelineCommunicator(std::shared_ptr<Lifeline> lifeline, const WaitLimits& limits)
      : limits_(limits), lifeline_(std::move(lifeline)) {}

  Lifeline* lifeline() const { return lifeline_.get(); }

 private:
  const WaitLimits limits_;
  // Held by the base class, so that its goodbye is sent after the derived class has closed its
  // connections.
  const std::shared_ptr<Lifeline> lifeline_;
};

}  // namespace hvd_sparse
