"""What `hvd-sparse bench` does: every collective beside a dense allreduce, on the ranks of a job.

Begin with bench.py. ranks.py brings the ranks, results.py has what is asked and found;
hvd_sparse/cli/bench.py prints it.
"""
