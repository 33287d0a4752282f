"""What a gate's record says of its request."""

from poros.config import PorosConfig
from poros.measure.request import Request, told_request, write_request


def told(tmp_path, **fields):
    write_request(Request(folder=str(tmp_path), **fields))
    return told_request(tmp_path)


def test_length_batch_and_cap_are_told_and_no_folder_is(tmp_path):
    record = told(
        tmp_path, target="shape", model="qwen2.5-7b", seq_len=64, cap_bytes=5, tokenizer="/secret"
    )
    assert record["model"] == "qwen2.5-7b"
    assert (record["seq_len"], record["batch_size"], record["cap_bytes"]) == (64, 1, 5)
    assert not any("/" in str(value) for value in record.values())


def test_a_config_tells_its_own_and_a_demo_no_model(tmp_path):
    config = PorosConfig(
        model_name_or_path="/home/me/models/tiny", max_seq_length=96, per_device_batch_size=3
    )
    record = told(tmp_path, target="config", config=config.model_dump(mode="json"))
    assert (record["model"], record["seq_len"], record["batch_size"]) == ("tiny", 96, 3)
    assert told(tmp_path, target="demo", model="/home/me/demo")["model"] is None


def test_without_a_request_nothing_is_told(tmp_path):
    assert told_request(tmp_path) == {}
