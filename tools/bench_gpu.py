"""What bench/results says of a GPU, as tables and plots for tools/bench_table. Files, and what writes them:
gpu-race.json (bench/train/race), gpu-fp8.json (race of the FP8 form --against the bf16 one), gpu-same-bits.json (race of the
reproducible form --against --no-deterministic-mode), gpu-attention.json (bench/ops/race), gpu-ops.json (isotron bench ops --json)."""
import pathlib

from bench_results import NotMeasured, load, percent, plot, range_of, table

GPU_FAMILIES = ["gemm", "attention", "norm", "activation", "loss", "elementwise", "embedding", "optimizer", "moe", "fp8", "idle"]


# Measured by hand with llm.c's own programs on another board of this kind: tokens/s.
LLM_C = {"gpt2-125m": 592000, "gpt2-1.5b": 51980, "gpt3-1.3b": 66840}
# What is asked for: MFU, tokens/s, the ratio to PyTorch (1.05 elsewhere). The first two where the product roof is this high, else
# in proportion.
TARGET_ROOF = 755
TARGET_MFU = {"gpt2-125m": 0.46, "gpt3-1.3b": 0.60, "gpt3-2.7b": 0.61, "gpt3-6.7b": 0.62}
TARGET_TOKENS = {"llama3-8b": 12600}
TARGET_RATIO = {"gpt2-125m": 1.15}
# Memory-bound kernels on large sizes, in bf16, GB/s.
STREAMING = {"norm": "norm/", "residual and norm": "add_norm/", "norm, gradient": "norm_grad/", "SwiGLU": "activation/swiglu",
             "SwiGLU, gradient": "activation_grad/swiglu", "cross-entropy": "cross_entropy_with_grad", "AdamW": "adamw/"}
TARGET_GBYTES = 3800


def judged(name="gpu-race.json"):
    """The rows of a race that have both sides."""
    return [row for row in load(name)["rows"] if "ratio" in row]


def profile(row):
    """The turn of ours that timed every op."""
    return next(turn["result"] for turn in row["ours"] if "result" in turn)


def busy(row, side, sensor):
    values = [turn["sensors"][sensor]["median"] for turn in row[side] if turn.get("sensors")]
    return f"{sum(values) / len(values):.0f}" if values else "-"


def common(name, what):
    """A fact of the rows' provenance: the same of all, or every one that there is."""
    texts = []
    for row in judged(name):
        fact = row["provenance"].get(what)
        text = ", ".join(f"{k}: {pathlib.Path(v).name}" for k, v in fact.items()) if isinstance(fact, dict) else fact
        if text is not None and text not in texts:
            texts.append(text)
    return texts


def options_of(name, what):
    return " or ".join(f"`{text}`" if text else "as configured" for text in common(name, what))


def race_table():
    rows = []
    for row in judged():
        llm_c = LLM_C.get(row["conf"])
        rows.append([row["conf"], f"{row['ours_ms']['median']:.1f}", f"{row['peer_ms']['median']:.1f}", range_of(row["ratio"], 3),
                     f"{row['tokens_per_second']:.0f}", llm_c or "-", percent(row["mfu"]) if "mfu" in row else "-",
                     percent(row["peer_mfu"]) if "peer_mfu" in row else "-", percent(row["of_roof"]) if "of_roof" in row else "-",
                     next((turn["result"].get("optimizer", "-") for turn in row["peer"] if "result" in turn), "-")])
    return table(["model", "ms a step", "PyTorch", "ratio", "tokens/s", "llm.c's, by hand", "MFU", "PyTorch's", "of the product roof",
                  "PyTorch's optimizer"], rows) + f"\n\nOurs: {options_of('gpu-race.json', 'ours_options')}."


def against_table(name, ours, other, gain):
    """A race of our own program against itself."""
    rows = [[row["conf"], f"{row['ours_ms']['median']:.1f}", f"{row['peer_ms']['median']:.1f}", gain(row["ratio"])] for row in judged(name)]
    return table(["model", f"{ours}, ms a step", other, "ratio" if gain is ratio_of else "cost"], rows)


def ratio_of(ratio):
    return range_of(ratio, 3)


def cost_of(ratio):
    return " to ".join(sorted({f"{100 * (1 / ratio[key] - 1):+.1f} %" for key in ("max", "min")}, key=lambda x: float(x.split()[0])))


def fp8_table():
    sides = [options_of("gpu-fp8.json", f"{side}_options") for side in ("ours", "peer")]
    return against_table("gpu-fp8.json", "FP8", "bf16", ratio_of) + f"\n\nFP8: {sides[0]}; bf16: {sides[1]}."


def same_bits_table():
    return against_table("gpu-same-bits.json", "same bits in every run", "any order", cost_of)


def attention_table():
    rows = []
    for row in load("gpu-attention.json")["rows"]:
        cells = [f"`{row['name']}`", " x ".join(map(str, row["shape"]))]
        for form in ("any_order", "same_bits"):
            for side in ("ours", "peer"):
                cell = row[form].get(side)
                by = f", {cell['path']}" if cell and side == "peer" else ""
                cells.append(f"{cell['us']['median']:.0f} us, {row['gflop'] / cell['us']['median'] * 1e3:.0f} TFLOP/s{by}" if cell else "-")
            cells.append(range_of(row[form]["ratio"], 3) if "ratio" in row[form] else "-")
        rows.append(cells)
    return table(["op/shape", "s x b x groups x heads x width", "any order", "PyTorch", "ratio", "same bits", "PyTorch", "ratio"], rows)


# ---- targets ----

def step_targets():
    for row in judged():
        roof = profile(row).get("roof_gflops", 0) * 1e-3
        scale = min(1, roof / TARGET_ROOF) if roof else 1
        for targets, name, measured, text in ((TARGET_MFU, "MFU", row.get("mfu"), percent),
                                              (TARGET_TOKENS, "tokens/s", row.get("tokens_per_second"), "{:.0f}".format)):
            target = targets.get(row["conf"])
            if target and measured:
                yield f"{row['conf']}: {name}", text(target), f"{text(target * scale)} (roof {roof:.0f})", text(measured), \
                    "yes" if measured >= target else "at this roof" if measured >= target * scale else "no"
        ratio, wanted = row["ratio"]["median"], TARGET_RATIO.get(row["conf"], 1.05)
        yield f"{row['conf']}: ratio to PyTorch", f"{wanted:.2f}", "", f"{ratio:.3f}", ratio >= wanted
        if row["conf"] in LLM_C:
            measured, theirs = row["tokens_per_second"], LLM_C[row["conf"]]
            yield f"{row['conf']}: tokens/s of llm.c, by hand", theirs, "", f"{measured:.0f}", measured > theirs
        in_place = profile(row)["gemm"].get("of_alone")
        if in_place:
            yield f"{row['conf']}: products in the step against alone", "95.0 %", "", percent(in_place), in_place >= 0.95


def stream_targets():
    rows = [row for row in load("gpu-ops.json")["rows"] if row["type"] == "bf16" and "gbytes" in row]
    for name, begins in STREAMING.items():
        rates = [row["gbytes"] for row in rows if row["name"].startswith(begins)]
        if rates:
            yield f"{name}, GB/s", TARGET_GBYTES, "", f"{min(rates):.0f} to {max(rates):.0f}", max(rates) >= TARGET_GBYTES


def attention_targets():
    ratios = [row["any_order"]["ratio"]["median"] for row in load("gpu-attention.json")["rows"] if "ratio" in row["any_order"]]
    if ratios:
        yield "attention: PyTorch's time over ours, worst shape", "0.970", "", f"{min(ratios):.3f}", min(ratios) >= 0.97


def against_targets():
    for row in judged("gpu-same-bits.json"):
        cost = 1 / row["ratio"]["median"] - 1
        yield f"{row['conf']}: cost of the same bits", "3.0 %", "", percent(cost), cost <= 0.03


def fp8_targets():
    for row in judged("gpu-fp8.json"):
        yield f"{row['conf']}: FP8 over bf16", "1.30", "", f"{row['ratio']['median']:.3f}", row["ratio"]["median"] >= 1.3


TARGETS = {"steps beside PyTorch": step_targets, "memory-bound kernels": stream_targets, "attention beside PyTorch": attention_targets,
           "cost of the same bits": against_targets, "FP8 over bf16": fp8_targets}


def targets_table():
    rows, measured = [], 0
    for name, targets in TARGETS.items():
        try:
            of_name = [[*cells, {True: "yes", False: "no"}.get(met, met)] for *cells, met in targets()]
        except NotMeasured:
            of_name = []
        measured += len(of_name)
        rows += of_name or [[name, "", "", "not measured", "no"]]
    if not measured:
        raise NotMeasured
    return table(["what", "target", f"at this board's product roof, of {TARGET_ROOF} TFLOP/s", "measured", "met"], rows)


# ---- figures, conditions, ops ----

def race_figures():
    judged()
    return "![MFU of both](race.svg)\n\n![shares of a step](step.svg)"


def race_figure_top():
    judged()
    return "![MFU of both](docs/race.svg)"


def conditions_table():
    rows = [[row["conf"], profile(row)["provenance"]["commit"], f"{sum('result' in t for t in row['ours'])}, {sum('result' in t for t in row['peer'])}",
             *(busy(row, side, sensor) for side in ("ours", "peer") for sensor in ("sm_mhz", "watts", "celsius"))] for row in judged()]
    return table(["model", "commit", "turns of each", "MHz", "W", "C", "PyTorch: MHz", "W", "C"], rows)


def gpu_step_table():
    rows = []
    for row in judged():
        result = profile(row)
        total, families = result["profiled_step_ms"], result["family_ms"]
        gemm = result["gemm"]
        rows.append([row["conf"], *(f"{families[f] / total:.1%}" for f in GPU_FAMILIES), f"{result['timing_ops_adds']:+.1%}",
                     f"{gemm['of_alone']:.3f}" if "of_alone" in gemm else "-",
                     f"{result['memory_mb']['peak_over_plan'] - 1:+.1%}"])
    used = [i for i, family in enumerate(GPU_FAMILIES) if any(row[1 + i] != "0.0%" for row in rows) or family == "idle"]
    keep = lambda row: [row[0], *(row[1 + i] for i in used), *row[1 + len(GPU_FAMILIES):]]
    return table(["model", *(GPU_FAMILIES[i] for i in used), "timing adds", "products in step : alone", "memory over plan"],
                 [keep(row) for row in rows])


def gpu_ops_table():
    result = load("gpu-ops.json")
    roofs, types, cells, names = result["roofs"], [], {}, []
    for row in result["rows"]:
        if row["name"] not in names:
            names.append(row["name"])
        if row["type"] not in types:
            types.append(row["type"])
        rate = f"{row['gbytes']:.0f} GB/s" if "gbytes" in row else f"{row['gflops'] * 1e-3:.1f} TFLOP/s"
        cells[row["name"], row["type"]] = f"{row['us']:.0f} us, {rate}, {100 * row['of_roof']:.0f} %"
    all_roofs = [f"copy {roofs['copy_gbytes']:.0f} GB/s",
                 *(f"{name} product {value * 1e-3:.0f} TFLOP/s" for name, value in roofs.items() if name != "copy_gbytes")]
    head = "" if result.get("complete", True) else "The run was stopped before its end.\n\n"
    head += f"Roofs: {', '.join(all_roofs)}.\n\n"
    return head + table(["op/shape", *types], [[f"`{name}`", *(cells.get((name, t), "") for t in types)] for name in names])


def gpu_provenance_table():
    names = dict.fromkeys(name for row in judged() for name in row["provenance"])
    of_row = ("commit", "date")  # in the table of conditions
    return table(["", ""], [[name, "; ".join(map(str, common("gpu-race.json", name)))] for name in names if name not in of_row])


def race_plot():
    data = []
    for row in judged():
        if "peer_mfu" in row:
            by_hand = f"{100 * row['mfu'] * LLM_C[row['conf']] / row['tokens_per_second']:.3f}" if row["conf"] in LLM_C else "NaN"
            data.append(f"{row['conf']} {100 * row['mfu']:.3f} {100 * row['peer_mfu']:.3f} {by_hand}")
    return plot("docs/race.svg", (900, 420), [
        "set style histogram clustered gap 1", "set boxwidth 0.9", "set ylabel 'MFU, %'", "set yrange [0:*]", "set key above",
        "plot $data using 2:xtic(1) title 'Isotron', '' using 3 title 'PyTorch: compile, cuDNN attention', "
        "'' using 4 title 'llm.c (by hand, another board)'"], data)


def step_plot():
    shares = [(row["conf"], profile(row)) for row in judged()]
    used = [f for f in GPU_FAMILIES if any(result["family_ms"][f] > 0 for _, result in shares)]
    data = [" ".join([conf, *(f"{100 * result['family_ms'][f] / result['profiled_step_ms']:.3f}" for f in used)])
            for conf, result in shares]
    colour = {"idle": " lc rgb 'gray90'"}
    parts = [f"{chr(39) * 2 if i else '$data'} using {i + 2}{':xtic(1)' if i == 0 else ''} title '{family}'{colour.get(family, '')}"
             for i, family in enumerate(used)]
    return plot("docs/step.svg", (900, 480), [
        "set style histogram rowstacked", "set boxwidth 0.6", "set ylabel 'share of a step, %'", "set yrange [0:100]",
        "set key outside right invert", "plot " + ", ".join(parts)], data)


# The targets come last: they are of several files, of which each has its own table before, so that a damaged one is named.
SECTIONS = {"race": race_table, "race-figures": race_figures, "race-figure-top": race_figure_top, "gpu-step": gpu_step_table,
            "gpu-ops": gpu_ops_table, "gpu-attention": attention_table, "gpu-fp8": fp8_table, "gpu-same-bits": same_bits_table,
            "gpu-conditions": conditions_table, "gpu-provenance": gpu_provenance_table, "gpu-targets": targets_table}
PLOTS = [race_plot, step_plot]
