from poros.measure.arms import Job, run_jobs


def test_a_job_waits_for_those_that_it_comes_after_while_others_run(tmp_path):
    said: list[str] = []
    shell = "import sys, time; time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"
    jobs = [
        Job("streamed.alone-0", ("-c", shell, "0", "1")),
        Job("resumed", ("-c", shell, "0", "0"), after="streamed"),
        Job("streamed.alone-1", ("-c", shell, "0.5", "0")),
        Job("reference", ("-c", shell, "0", "0")),
    ]
    ended = run_jobs(jobs, logs=tmp_path, num_parallel=2, num_threads=1, say=said.append)
    assert list(ended) == ["streamed.alone-0", "reference", "streamed.alone-1", "resumed"]
    assert [job.exit_code for job in ended.values()] == [1, 0, 0, 0]
    assert said[0] == "streamed.alone-0: FAILED with exit code 1 after 0 s"
