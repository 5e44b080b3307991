"""schemathesis derives thousands of valid and invalid requests from /openapi.json. No answer of serve may contradict
this document. The test needs schemathesis (ci/install-deps nightly). The environment variable SEED repeats a run."""
import needs_numpy
from serving import *

sys.path[:0] = [str(ROOT / "build/nightly/schemathesis"), str(ROOT / "tests/functional/fields")]
sys.dont_write_bytecode = True
import model
import schemathesis
import schemathesis.cli

KEY, EXAMPLES = "secret", 400
UPDATE = "/update_weights_from_disk"
# JSON Schema cannot state why serve refuses these bodies.
REASONS = [
    # two fields
    "needs '", "mutually exclusive", "not both", "is not streamed", "compares complete texts",
    "must be at least 'n'", "tokens are generated: lower it", "has no 'prompt'", "there is no function '",
    "because of 'allowed_token_ids'",
    "begins a new message, but",
    # the tokenizer and the size of the model and of the server
    "has no tokens", "of 'stop_token' is outside the vocabulary", "is not in the vocabulary", "maximum context length",
    "choices, but can have at most", "needs a token that is not in 'stop_token_ids'",
    # the content of texts: of a template, a schema, a path, or arguments
    "chat template", "chat_template", "continue_final_message", "nested too deeply", " in a schema ",
    "a schema must be", "'response_format'", "the weights are unchanged: ", "not a JSON object",
    "bytes, but can have at most",
    r"must not contain \u0000",
    # jansson
    "too big integer", "too big negative integer", "real number overflow", "NUL byte in object key"]
accepted = {}


@schemathesis.check
def valid_bodies_are_accepted(_, response, case):
    """Replaces positive_data_acceptance, which does not allow reasons."""
    accepted[case.path] = accepted.get(case.path, 0) + (response.status_code == 200)
    if response.status_code == 400 and case.meta and case.meta.generation.mode.is_positive:
        answer = response.json()
        message = answer.get("message") or answer["error"]["message"]
        assert any(reason in message for reason in REASONS), message


def run(examples, *options):
    words = ["run", f"http://127.0.0.1:{server.port}/openapi.json", "--checks", "all", "--exclude-checks",
             "positive_data_acceptance", "--header", f"Authorization:Bearer {KEY}", "--max-examples", examples, "--seed",
             os.environ.get("SEED", time.strftime("%y%m%d")), "--generation-database", "none", "--continue-on-failure",
             "--request-timeout", TIMEOUT_S, "--output-sanitize", "false", "--no-color", *options]
    try:
        schemathesis.cli.schemathesis.main([str(word) for word in words])
    except SystemExit as end:
        return end.code


model.write(WORK / "hf")
isotron("convert", "--from-hf", WORK / "hf", "--save", WORK / "saved")
server = Server(WORK / "saved", "--enable-control", "--api-key", KEY, "--inference-dynamic-batching-buffer-size-gb",
                0.02)
server.headers = {"Authorization": f"Bearer {KEY}"}
paths = json.loads(server.request("GET", "/openapi.json")[2])["paths"]
os.chdir(WORK)
status = run(EXAMPLES)
assert server.request("POST", "/pause")[0] == 200  # other paths are allowed in this state
status = status or run(EXAMPLES // 10, "--include-path-regex", f"^/(sleep|wake_up|{UPDATE[1:]})$")
server.end()
missing = [path for path in paths if path not in (UPDATE, "/openapi.json") and not accepted.get(path)]
assert not status and not missing, (status, missing, accepted)  # schemathesis reads /openapi.json without this check
print(f"serve conforms to its description: {accepted}")
