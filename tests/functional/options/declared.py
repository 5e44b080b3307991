"""The options of src/config/options.def, and those that change no number."""
import pathlib
import re

from program import bits, compare, expect
from rows import FP8, ROWS
from trainer import Options, Trainer

OPTIONS_DEF = pathlib.Path(__file__).resolve().parents[3] / "src/config/options.def"

# (fields, words, reason): the run is bitwise equal to one with `like`.
UNCHANGED = [
    ("exit_duration_in_mins exit_signal_handler exit_signal", "--exit-duration-in-mins 60 --exit-signal-handler --exit-signal SIGUSR1", "",
     "affects only when a run ends, by time or signal: functional/interrupt"),
    ("attention_softmax_in_fp32 accumulate_allreduce_grads_in_fp32 mmap_bin_files save_rng load_rng",
     "--attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32 --no-mmap-bin-files --no-save-rng"
     " --no-load-rng", "", "always the case"),
    ("deterministic_mode gemm_tuning", "--no-deterministic-mode --gemm-tuning off", "", "affects only GPU kernels"),
    ("data_cache_path num_workers", "--data-cache-path cache --num-workers 5", "", "affects only where an index is cached, and prefetching"),
    ("distributed_timeout_minutes", "--distributed-timeout-minutes 5", "", "affects only when a hung run ends: functional/faults"),
    ("distributed_backend", "--distributed-backend gloo", "", "affects only memory of GPUs"),
    ("distributed_timeout_seconds", "--distributed-timeout-seconds-after-init 300", "", "the same"),
    ("hf_model_type", "--hf-model-type gpt2", "", "affects only what convert writes: functional/convert"),
    ("use_precision_aware_optimizer", "--lane fp32 --use-precision-aware-optimizer", "--lane fp32", "only allows other types of moments"),
    ("add_position_embedding", "--position-embedding-type rope --no-position-embedding", "--position-embedding-type rope", "rope has none"),
    ("fp8_emulated fp8_keep_weights fp8_keep_inputs", FP8 + "--fp8-emulated --fp8-keep-weights --fp8-keep-inputs", FP8, "affects only GPU kernels"),
]
REFUSED = [("gemm_sm_margin", "--gemm-sm-margin 4"), ("nccl_library", "--ranks 2 --nccl-library no-such-file"),
           ("task class_labels classifier_dropout train_data valid_data epochs keep_last", "--task RACE --epochs 1")]  # of finetune: functional/finetune


def declared():
    """{field: (group, class, type, name of the option)}"""
    group, found = None, {}
    row = r'^OPTGROUP\((\w+)|^OPT(?:NUM|ENUM)?\((\w+), (\w+),[^"]* (\w+),\s+"([^"|]+)'
    for title, kind, field, class_, name in re.findall(row, OPTIONS_DEF.read_text(), re.M):
        group = title or group
        if field:
            found[field] = group, class_, kind, name
    return found


def complaints():
    """Options without a row or a reason, and rows or reasons without an option."""
    judged = [f for row in ROWS for f in row.fields]
    exempt = " ".join(fields for fields, *_ in [*UNCHANGED, *REFUSED]).split()
    options = {field: class_ for field, (_, class_, _, _) in declared().items()}
    found = [f"{field} has neither a row in options/rows.py nor a reason in options/declared.py why it changes no number"
             for field, class_ in options.items() if class_ != "LAYOUT" and field not in {*judged, *exempt}]
    found += [f"{field} is no option of options.def" for field in {*judged, *exempt} - options.keys()]
    return found + [f"{field} has a row and a reason to have none" for field in {*judged} & {*exempt}]


def check_unchanged(program, quick):
    """Tests all together, grouped by `like`."""
    for like in sorted({like for _, _, like, _ in UNCHANGED}):
        plain = program.words(like)
        run = program.pretrain(program.words(like + " " + " ".join(words for _, words, of, _ in UNCHANGED if of == like)))
        compare(run, Trainer(plain).run(), plain)
        expect(bits(run) == bits(program.pretrain(plain)), f"an option that is to change nothing changes bits, with {like or 'nothing'}")
    for _, words in REFUSED:
        program.pretrain(program.words(words), status=2)
