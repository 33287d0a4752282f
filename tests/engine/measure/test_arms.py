from poros.measure.arms import Job, run_jobs

WAIT_FOR = """
import pathlib, sys, time
awaited, made = map(pathlib.Path, sys.argv[1:])
while not awaited.exists():
    time.sleep(0.01)
made.touch()
"""


def test_a_job_waits_for_those_that_it_comes_after_while_others_run(tmp_path):
    said: list[str] = []
    here, aside, done = tmp_path, tmp_path / "aside", tmp_path / "done"
    seen_done = "import pathlib, sys; sys.exit(not pathlib.Path(sys.argv[1]).exists())"
    jobs = [
        Job("streamed.alone-0", ("-c", "import sys; sys.exit(3)")),
        Job("resumed", ("-c", seen_done, str(done)), after="streamed"),
        Job("streamed.alone-1", ("-c", WAIT_FOR, str(aside), str(done))),
        Job("reference", ("-c", WAIT_FOR, str(here), str(aside))),
    ]
    ended = run_jobs(jobs, logs=tmp_path, num_parallel=2, num_threads=1, say=said.append)
    assert list(ended)[-1] == "resumed"
    codes = {name: job.exit_code for name, job in ended.items()}
    assert codes == {"streamed.alone-0": 3, "streamed.alone-1": 0, "reference": 0, "resumed": 0}
    assert said[0].startswith("streamed.alone-0: FAILED with exit code 3 after ")
