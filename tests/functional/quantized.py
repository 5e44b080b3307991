"""Imports of folders with quantized weights, and the refusal of folders that are damaged."""
from harness import *

sys.path.insert(0, str(ROOT / "tools" / "oracle"))
import tensors


def convert(*words, expect=0):
    return isotron("convert", *words, "--cpu-threads", 1, expect=expect)


def refuses(packed, edit, *parts, quantization):
    """Asserts that the import of the folder `packed`, with other tensors (None: without them) and another
    quantization_config, writes nothing and fails with a message that contains all parts."""
    folder = WORK / "edited"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(packed, folder)
    config = json.loads((packed / "config.json").read_text()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {n: t for n, t in (tensors.read(packed / "model.safetensors") | edit).items() if t}
    tensors.write(folder / "model.safetensors", weights, {"format": "pt"})
    said = convert("--from-hf", folder, "--save", WORK / "refused", expect=2)
    for part in parts:
        assert part in said, f"'{part}' is missing in: {said}"
    assert not (WORK / "refused").exists(), said
