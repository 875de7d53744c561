"""Python runs this at its start, to count lines where COVERAGE_PROCESS_START asks for it."""

import coverage

coverage.process_startup()
