"""Every recipe of bench/recipes can be planned at full size, fits the published GPU unless its file states otherwise,
and runs when it is scaled down but keeps all its kinds of parallelism."""
import concurrent.futures
import re

from harness import *

RECIPES = {path.stem: path for path in sorted((ROOT / "bench/recipes").glob("*.conf"))}
# Parameters in billions, from the published tables.
PARAMETERS = {"gpt-462b-h100": 462, "gpt-177b-h100": 177, "gpt-1t-a100": 1008.0, "gpt-145b-a100": 145.6,
              "llama3-8b": 8.03, "llama3-405b-fp8": 405.9, "mixtral-8x7b": 46.7, "bert-large": 0.336, "t5-11b": 11.0,
              "gpt3-175b": 174.6, "mixtral-8x22b": 140.6, "qwen3-8b": 8.19, "qwen3-30b-a3b-fp8": 30.53,
              "qwen3-235b-a22b-fp8": 235.09, "gpt-oss-120b": 116.8, "deepseek-v3": 682.6}
# Ranks, and tensor-, pipeline-, context- and expert-parallel sizes, from Megatron-LM's parallelism guide and its
# scaling tables.
LAYOUTS = {"llama3-8b": (8, 1, 1, 2, 1), "llama3-70b": (64, 4, 4, 2, 1), "llama3-405b": (1024, 8, 8, 2, 1),
           "gpt3-175b": (128, 4, 8, 1, 1), "gpt3-175b-256": (256, 4, 8, 1, 1), "gpt3-175b-512": (512, 4, 8, 1, 1),
           "mixtral-8x7b": (64, 1, 4, 1, 8), "mixtral-8x22b-256": (256, 4, 4, 1, 8),
           "deepseek-v3-pp16": (1024, 2, 16, 1, 64), "gpt-2b-h100": (96, 1, 1, 1, 1),
           "gpt3-175b-a100": (1024, 8, 16, 1, 1)}
AXES = {"tensor-model": "tensor", "pipeline-model": "pipeline", "context": "context", "expert-model": "expert"}

subprocess.run([ROOT / "tools/plan_recipes", "--program", PROGRAM, "--no-times", "--out",
                WORK / "plans.json"], check=True)
plans = {row["name"]: row for row in json.loads((WORK / "plans.json").read_text())["rows"]}
assert plans.keys() == RECIPES.keys() and len(plans) >= 42, plans.keys()
for name, plan in plans.items():
    text = RECIPES[name].read_text()
    gib = int(re.search(r"^# Published: .*[AH]100 (\d+) GB\.$", text, re.M)[1])
    assert (plan["bytes"] > gib * 2**30) == ("# Does not fit" in text), (name, plan["bytes"] / 2**30)
    assert "# Source: " in text or " Source: " in text, name
    assert abs(plan["parameters"] * 1e-9 / PARAMETERS.get(name, plan["parameters"] * 1e-9) - 1) < 2e-3, (name, plan)
for name, sizes in LAYOUTS.items():
    assert tuple(plans[name]["layout"][axis] for axis in ("ranks", "tensor", "pipeline", "context",
                                                          "expert")) == sizes, (name, plans[name]["layout"])

(WORK / "no.conf").write_text("num-layers = 2\n")
done = subprocess.run([ROOT / "tools/shrink_recipe", WORK / "no.conf"], capture_output=True, text=True)
assert done.returncode == 1, done
assert done.stderr.endswith("no.conf: it has no ranks, as each recipe of bench/recipes does\n"), done


def run(name):
    """Runs a scaled-down recipe. Returns its options and the result of a step."""
    path, out = RECIPES[name], WORK / f"{name}.json"
    words = subprocess.run([ROOT / "tools/shrink_recipe", path, "--tiny"], check=True, capture_output=True,
                           text=True).stdout.split()
    isotron("bench", "train", "--config", path, *words, "--device", "cpu", "--steps", 1, "--warmup", 1,
            "--no-alone", "--json", out)
    return name, json.loads(out.read_text())


with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for name, step in pool.map(run, RECIPES):
        options, published = step["options"], plans[name]["layout"]
        assert 2 <= step["ranks"] <= 8 and step["loss"] > 0, step
        for option, axis in AXES.items():
            size = options[f"{option}_parallel_size".replace("-", "_")]
            assert (size > 1) == (published[axis] > 1), (name, axis, size)
print(f"recipes: {len(plans)} planned and run")
