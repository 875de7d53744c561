"""The benchmark `hvd-sparse bench`: every collective beside a dense allreduce, on a job's ranks.

Begin with bench.py. ranks.py connects the ranks, results.py defines settings and results;
hvd_sparse/cli/bench.py prints them.
"""
