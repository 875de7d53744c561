"""The timeline: a trace of this package's work that Perfetto shows beside Horovod's.

Begin with timeline.py, the trace of this process; exchange_timeline.py writes the events of an
exchange to it, and merge.py joins several traces.
"""
