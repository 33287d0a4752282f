"""`poros check` of a model on a Hub: small questions, clear answers, no token in any line."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.error

import pytest

from poros import check_source
from poros.check import check_model
from poros.cli_check import record_of
from poros.errors import PorosError, PorosHubError, PorosModelError
from poros.hub_client import HubClient
from poros.hub_errors import kind_of, unreachable
from poros.hub_names import HubName, parse_model
from tests.engine.command_line import poros_here
from tests.engine.header_models import qwen_tensors, write_headers
from tests.engine.loading.hub_stub import COMMIT, REPOSITORY, running_stub
from tests.engine.processor_time import quickest_s
from tests.engine.test_check import SMALL
from tests.engine.test_cli import poros

TOKEN = "hf_secretsecretsecretsecret"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = write_headers(tmp_path_factory.mktemp("m") / "model", SMALL, qwen_tensors(SMALL))
    settings = {"chat_template": "{{ messages }}"}
    return {
        "config.json": (folder / "config.json").read_bytes(),
        "model.safetensors": (folder / "model.safetensors").read_bytes(),
        "tokenizer_config.json": json.dumps(settings).encode(),
        "README.md": b"#" * 1000,
    }


@pytest.fixture
def hub(files, tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with running_stub() as stub:
        stub.files = dict(files)
        stub.facts = {"cardData": {"license": "apache-2.0"}, "gated": False}
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield stub


def refused(name=REPOSITORY):
    """The line of the error that it ends with."""
    try:
        [error] = check_model(name).refusals
    except PorosError as raised:
        error = raised
    line = error.line()
    assert TOKEN not in line
    assert "\n" not in line
    return error.exit_code, line


def shards(files, num_shards=2):
    """The model's file in several, with their index."""
    whole = files["model.safetensors"]
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    names = list(header)
    found, weight_map = {}, {}
    for k in range(num_shards):
        entries, end, shard = {}, 0, f"model-{k}.safetensors"
        for name in names[k::num_shards]:
            start, stop = header[name]["data_offsets"]
            entries[name] = header[name] | {"data_offsets": [end, end + stop - start]}
            end += stop - start
            weight_map[name] = shard
        raw = json.dumps(entries).encode()
        found[shard] = len(raw).to_bytes(8, "little") + raw + bytes(end)
    rest = {name: files[name] for name in files if name != "model.safetensors"}
    return rest | found | {"model.safetensors.index.json": _json({"weight_map": weight_map})}


def _json(value):
    return json.dumps(value).encode()


def test_a_model_on_the_hub_is_checked_by_its_headers(hub, files):
    report = check_model(REPOSITORY)
    assert report.refusals == []
    assert report.labels.architecture == "certified"
    assert report.sizes.num_layers == 3
    assert report.has_template is True
    facts = report.facts
    assert (facts.licence, facts.gated, facts.commit) == ("apache-2.0", "", COMMIT)
    assert facts.download_bytes == sum(map(len, files.values())) - 1000
    assert set(hub.tokens) == {f"Bearer {TOKEN}"}


def test_shards_are_joined_by_their_index(hub, files):
    whole = check_model(REPOSITORY)
    hub.files = shards(files)
    report = check_model(REPOSITORY)
    assert report.refusals == []
    assert report.sizes == whole.sizes
    del hub.files["model-1.safetensors"]
    code, line = refused()
    assert (code, "1 of 2 shards are missing: model-1.safetensors" in line) == (4, True)


def test_of_weights_only_their_beginning_is_read(hub, monkeypatch):
    monkeypatch.setattr("poros.hub_model._FIRST_BYTES", 300)
    seen = []
    beginning = HubClient.beginning

    def watched(self, commit, file, num_bytes):
        body = beginning(self, commit, file, num_bytes)
        seen.append(len(body))
        return body

    monkeypatch.setattr(HubClient, "beginning", watched)
    assert check_model(REPOSITORY).refusals == []
    header = int.from_bytes(hub.files["model.safetensors"][:8], "little")
    assert seen == [300, 8 + header]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("401", ["no such model on the Hub, or it is private (HTTP 401)", "hf auth login"]),
        ("token", ["the Hub refuses access (HTTP 401)", "hf auth login"]),
        ("gated", ["gated", "accept"]),
        ("404", ["no such model on the Hub, or it is private"]),
        ("503", ["HTTP 503", "try again later"]),
        ("cut", ["the connection to the Hub broke off"]),
        ("html", ["the answer is not the Hub's"]),
        ("json", ["the answer is not the Hub's"]),
    ],
)
def test_a_hub_that_says_no_is_one_line_with_the_way_out(hub, failure, words):
    hub.failure = failure
    code, line = refused()
    assert code == 5
    for word in words:
        assert word in line


@pytest.mark.parametrize("failure", ["401", "503", "cut", "html"])
def test_a_file_that_can_not_be_had_is_one_line_too(hub, failure):
    hub.failure, hub.fail_files_only = failure, True
    assert refused()[0] == 5


def test_a_gated_model_is_told_with_its_licence_and_what_the_hub_says(hub):
    hub.facts |= {"gated": "manual", "config": {"model_type": "qwen2"}}
    hub.failure, hub.fail_files_only = "gated", True
    report = check_model(REPOSITORY)
    assert (report.facts.gated, report.facts.licence) == ("manual", "apache-2.0")
    assert report.labels.architecture == "certified"
    assert report.facts.download_bytes > 0
    [error] = report.refusals
    assert isinstance(error, PorosHubError)
    assert "accept" in error.remediation
    assert record_of(report)["hub"]["gated"] == "manual"


def test_a_gated_model_whose_terms_are_accepted_trains(hub):
    hub.facts["gated"] = "auto"
    report = check_model(REPOSITORY)
    assert (report.refusals, report.facts.gated) == ([], "auto")


def test_a_renamed_model_is_followed_and_told(hub):
    hub.renamed = {"old/name": REPOSITORY}
    report = check_model("old/name")
    assert report.refusals == []
    assert report.facts.is_renamed
    assert report.facts.name == REPOSITORY
    assert all(f"/{REPOSITORY}/" in path for path in hub.asked if "resolve" in path)


def test_a_redirect_to_elsewhere_goes_without_the_token(hub, files):
    with running_stub() as other:
        other.files = dict(files)
        hub.elsewhere = f"http://localhost:{other.server_port}"
        assert check_model(REPOSITORY).refusals == []
        assert other.asked
        assert set(other.tokens) == {""}


def test_redirects_without_end_and_to_no_web_address_are_told(hub):
    hub.elsewhere = hub.endpoint
    assert "redirects without end" in refused()[1]
    hub.elsewhere = "file:///etc/passwd?"
    assert "redirect to no web address" in refused()[1]


def test_nobody_listening_is_one_line(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, line = refused()
    assert code == 5
    assert "the Hub can't be reached: the connection was refused, model" in line


def test_a_broken_way_to_the_hub_is_told_in_words_not_by_a_class():
    no_name = urllib.error.URLError(socket.gaierror(-3, "Temporary failure in name resolution"))
    assert "its address is not found" in unreachable(kind_of(no_name), "model m").message
    assert "no answer in time" in unreachable(kind_of(TimeoutError()), "model m").message
    assert kind_of(ValueError("with a secret")) == "ValueError"


@pytest.mark.parametrize(
    "address", ["nonsense", "http://", "http://[1", "http://h:port", "ftp://x"]
)
def test_an_endpoint_of_nonsense_is_one_line(hub, monkeypatch, address):
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert refused()[0] == 5


def test_certificates_that_can_not_be_read_are_told(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint.replace("http:", "https:"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    code, line = refused()
    assert (code, "certificates can't be read" in line) == (5, True)
    (tmp_path / "none.pem").write_text("no certificate")
    assert "certificates can't be read" in refused()[1]
    # A folder can be read: what fails is the stub, which speaks no TLS.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path))
    code, line = refused()
    assert (code, "SSLError" in line, "certificates can't" in line) == (5, True, False)


def test_certificates_are_not_read_for_an_address_without_tls(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    assert check_model(REPOSITORY).refusals == []


def test_a_token_of_nonsense_is_refused_without_telling_it(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\nx: y")
    assert "no token has" in refused()[1]
    assert hub.asked == []


def test_the_token_of_a_login_is_used(hub, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "token").write_text("hf_filed\n")
    check_model(REPOSITORY)
    assert set(hub.tokens) == {"Bearer hf_filed"}


@pytest.mark.parametrize(
    "facts",
    [
        {"sha": None}, {"sha": "../.."}, {"siblings": None},
        {"siblings": [1, {}, {"rfilename": 2}]},
        {"id": "../../x"}, {"id": 7}, {"gated": 3}, {"cardData": [1]}, {"tags": 5},
        {"cardData": {"license": [1, None]}}, {"config": "x"}, {"private": "no"},
    ],
    ids=str,
)  # fmt: skip
def test_no_answer_of_a_hub_crashes_it(hub, facts):
    hub.facts |= facts
    try:
        json.dumps(record_of(check_model(REPOSITORY)))
    except PorosError as error:
        assert TOKEN not in error.line()  # noqa: PT017 - either end is right


@pytest.mark.parametrize(
    ("facts", "licence"),
    [
        ({"cardData": {"license": "other", "license_name": "gemma"}}, "gemma"),
        ({"cardData": {"license": ["mit", "apache-2.0"]}}, "mit, apache-2.0"),
        ({"cardData": None, "tags": ["license:llama3"]}, "llama3"),
        ({"cardData": None}, ""),
    ],
)
def test_the_licence_is_told_as_the_card_or_the_tags_say_it(hub, facts, licence):
    hub.facts |= facts
    assert check_model(REPOSITORY).facts.licence == licence


def test_damaged_weights_and_pickles_are_told_before_any_download(hub, files):
    hub.files["model.safetensors"] = b"<html>sign in</html>"
    assert refused() == (4, refused()[1])
    assert "an HTML page" in refused()[1]
    hub.files["model.safetensors"] = files["model.safetensors"][:-7]
    assert "cut short" in refused()[1]
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b""}
    assert "Poros never unpickles" in refused()[1]


def cached(files):
    """Where the Hub's library would keep the model, and its files there."""
    from poros.hub_names import hub_cache

    place = hub_cache() / f"models--{REPOSITORY.replace('/', '--')}"
    folder = place / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_whole_copy_in_the_cache_is_taken_and_the_hub_asked_for_facts_alone(hub, files):
    folder = cached(files)
    report = check_model(REPOSITORY)
    assert report.folder == folder
    assert report.facts.licence == "apache-2.0"
    assert [path for path in hub.asked if "/resolve/" in path] == []
    assert check_model(f"{REPOSITORY}@{COMMIT}").folder == folder
    hub.failure = "503"
    report = check_model(REPOSITORY)
    assert (report.refusals, report.facts) == ([], None)
    assert "HTTP 503" in report.note


def test_half_a_copy_in_the_cache_is_not_taken(hub, files):
    folder = cached(files)
    (folder / "model.safetensors").unlink()
    report = check_model(REPOSITORY)
    assert (report.refusals, report.folder) == ([], None)


def test_offline_nobody_is_asked(hub, files, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, line = refused()
    assert (code, "HF_HUB_OFFLINE is set" in line) == (5, True)
    cached(files)
    report = check_model(REPOSITORY)
    assert report.refusals == []
    assert "not asked" in report.note
    assert hub.asked == []


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("org/name", HubName("org/name")),
        ("gpt2", HubName("gpt2")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("https://hf.co/org/name/tree/v1.0", HubName("org/name", "v1.0")),
        ("https://huggingface.co/org/name/blob/main/config.json", HubName("org/name", "main")),
        ("https://huggingface.co/gpt2/tree/main?x=1#y", HubName("gpt2", "main")),
    ],
)
def test_names_and_addresses(said, meant):
    assert parse_model(said) == meant


@pytest.mark.parametrize(
    "said",
    ["https://example.org/a/b", "https://", "https://huggingface.co", "https://[", "a b",
     "a/b@../x", f"https://user:{TOKEN}@example.org/a/b"],
)  # fmt: skip
def test_what_is_neither_is_refused_without_a_request(said):
    with pytest.raises(PorosModelError) as caught:
        parse_model(said)
    assert TOKEN not in caught.value.line()


def test_the_command_tells_it_all_without_the_token(hub):
    hub.facts["gated"] = "auto"
    ended = poros_here("check", REPOSITORY)
    assert (ended.returncode, ended.stderr) == (0, "")
    for words in ("licence  apache-2.0", "gated (auto)", "chat template  yes", "download"):
        assert words in ended.stdout
    record = json.loads(poros_here("check", REPOSITORY, "--json").stdout)
    assert record["hub"]["licence"] == "apache-2.0"
    assert TOKEN not in json.dumps(record) + ended.stdout
    hub.failure = "401"
    ended = poros_here("check", REPOSITORY)
    assert (ended.returncode, ended.stdout) == (5, "")
    assert ended.stderr.count("\n") == 1
    assert TOKEN not in ended.stderr


def test_a_folder_asks_nobody(hub, files, tmp_path):
    folder = cached(files)
    shutil.copytree(folder, tmp_path / "mine")
    report = check_model(str(tmp_path / "mine"))
    assert (report.facts, report.note, report.has_template) == (None, "", True)
    assert hub.asked == []
    assert check_source.open_model(str(tmp_path / "mine")).folder == tmp_path / "mine"


@pytest.mark.alone
def test_it_starts_in_half_a_second_on_a_hub_too(hub):
    def check():
        assert poros("check", REPOSITORY).returncode == 0

    assert quickest_s(check, below_s=0.5) < 0.5
