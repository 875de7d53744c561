"""The timeline: what happens when, as a trace for Perfetto beside Horovod's.

Begin with timeline.py, the trace of this process; exchange_timeline.py says what an exchange writes
there, and merge.py puts several traces side by side.
"""
