"""Options of `isotron finetune` take effect. Each option that changes numbers has a row in options/task_rows.py, which
compares steps and epochs with the reference trainer of options/task.py. All other options leave results bitwise equal,
or are refused.

usage: options/judge.py"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "options"))
sys.dont_write_bytecode = True
import judge
import declared
from program import TERMS, bits, expect
from table import FP8, Row
from task import TaskTrainer
from task_rows import BASE, ROWS, tune, tuned, write_files

# (fields, words, like, reason): a run with `words` must be bitwise equal to a run with `like`. For options of experts
# and of other tokenizers, a note on stderr says that they have no effect.
UNCHANGED = [
    ("exit_duration_in_mins exit_signal_handler exit_signal attention_softmax_in_fp32 "
     "accumulate_allreduce_grads_in_fp32 override_opt_param_scheduler save_rng load_rng deterministic_mode gemm_tuning "
     "num_workers distributed_backend distributed_timeout_minutes",
     "--exit-duration-in-mins 60 --exit-signal-handler --exit-signal SIGUSR1 --attention-softmax-in-fp32 "
     "--accumulate-allreduce-grads-in-fp32"
     " --override-opt_param-scheduler --no-save-rng --no-load-rng --no-deterministic-mode --gemm-tuning off "
     "--num-workers 5"
     " --distributed-backend gloo --distributed-timeout-minutes 5", "", "as in pretrain"),
    ("distributed_timeout_seconds hf_model_type make_vocab_size_divisible_by untie_embeddings_and_output_weights",
     "--distributed-timeout-seconds-after-init 300 --hf-model-type megatron-bert --make-vocab-size-divisible-by 64 "
     "--untie-embeddings-and-output-weights", "",
     "affects what convert writes, padding, and an output layer that a task does not have"),
    ("relative_attention_num_buckets relative_attention_max_distance merge_file null_tokenizer_eod_id "
     "null_tokenizer_pad_id tiktoken_pattern tiktoken_num_special_tokens",
     "--relative-attention-num-buckets 8 --relative-attention-max-distance 8 --merge-file x --null-tokenizer-eod-id 3"
     " --null-tokenizer-pad-id 4 --tiktoken-pattern v1 --tiktoken-num-special-tokens 3", "", "no effect"),
    ("moe_layer_freq moe_ffn_hidden_size moe_router_topk moe_router_score_function moe_router_pre_softmax "
     "moe_router_topk_scaling_factor moe_router_bias_update_rate moe_router_load_balancing_type moe_aux_loss_coeff "
     "moe_z_loss_coeff moe_input_jitter_eps moe_expert_capacity_factor moe_token_drop_policy "
     "moe_shared_expert_intermediate_size moe_router_num_groups moe_router_group_topk moe_router_group_score_topk "
     "moe_router_quantile_balancing_ema moe_router_force_load_balancing moe_apply_probs_on_input moe_latent_size "
     "moe_per_layer_logging moe_router_enable_expert_bias",
     "--moe-router-enable-expert-bias --moe-router-group-score-topk 1 --moe-router-quantile-balancing-ema 0.5"
     " --moe-router-force-load-balancing"
     " --moe-apply-probs-on-input --moe-latent-size 4 --moe-per-layer-logging"
     " --moe-router-num-groups 2 --moe-router-group-topk 1 --moe-layer-freq 2 --moe-ffn-hidden-size 8"
     " --moe-router-topk 1 --moe-router-score-function sigmoid --moe-router-pre-softmax "
     "--moe-router-topk-scaling-factor 2"
     " --moe-router-bias-update-rate 0.1 --moe-router-load-balancing-type none --moe-aux-loss-coeff 0.1 "
     "--moe-z-loss-coeff 0.1"
     " --moe-input-jitter-eps 0.1 --moe-expert-capacity-factor 2 --moe-token-drop-policy position "
     "--moe-shared-expert-intermediate-size 8", "",
     "no effect"),
    ("moe_router_force_biased moe_router_sparsemixer_eps",
     "--moe-router-force-biased 1 --moe-router-sparsemixer-eps 0.1", "", "no effect"),
    ("q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim",
     "--q-lora-rank 4 --kv-lora-rank 4 --qk-head-dim 4 --qk-pos-emb-head-dim 4 --v-head-dim 4", "", "no effect"),
    ("qk_clip_alpha qk_clip_threshold", "--qk-clip-alpha 0.3 --qk-clip-threshold 0.1", "", "no effect"),
    ("calculate_per_token_loss", "--calculate-per-token-loss", "",
     "each sample counts the same, and --keep-last has it anyway"),
    ("use_precision_aware_optimizer", "--lane fp32 --use-precision-aware-optimizer", "--lane fp32", "as in pretrain"),
    ("add_position_embedding", "--position-embedding-type rope --no-position-embedding",
     "--position-embedding-type rope", "as in pretrain"),
    ("mrope_section", "--position-embedding-type mrope --mrope-section 1 1", "--position-embedding-type rope",
     "as in pretrain"),
    ("fp8_emulated fp8_keep_weights fp8_keep_inputs", FP8 + "--fp8-emulated --fp8-keep-weights --fp8-keep-inputs", FP8,
     "as in pretrain"),
]
REFUSED = [
    ("multi_latent_attention", "--multi-latent-attention"),
    ("qk_clip", "--qk-clip"), ("log_max_attention_logit", "--log-max-attention-logit"),
    ("latent_norm_epsilon", "--latent-norm-epsilon 1e-3"),
    ("mla_rotary_interleaved", "--no-mla-rotary-interleaved"),
    ("add_output_layer_bias", "--add-output-layer-bias"), ("rope_type", "--rope-type yarn"),
    ("num_experts", "--num-experts 4"),
    ("moe_shared_expert_gate", "--moe-shared-expert-gate"),
    ("attention_chunk_size", "--position-embedding-type rope --attention-chunk-size 4"),
    ("no_rope_temperature_scale no_rope_temperature_floor",
     "--position-embedding-type rope --no-rope-freq 2 --no-rope-temperature-scale 0.1"),
    ("rope_temperature_scale rope_temperature_floor",
     "--position-embedding-type rope --rope-temperature-scale 0.1"),
    ("window_size", "--window-size 3,0"), ("window_attn_skip_freq", "--window-attn-skip-freq 2"),
    ("rope_local_base_freq", "--position-embedding-type rope --rope-local-base-freq 30"),
    ("logits_scaling", "--logits-scaling 2"),
    ("use_mup mup_base_hidden_size mup_base_head_dim mup_attn_scale_power mup_embedding_mult mup_output_mult",
     "--use-mup"),
    ("final_logit_softcapping", "--final-logit-softcapping 2"), ("gemm_sm_margin", "--gemm-sm-margin 4"),
    ("nccl_library", "--ranks 2 --nccl-library no-such-file"),
    ("", "--model gpt"), ("", "--hf-model-type gpt2"),
]
# Options that pretrain reads but finetune does not. An error must name each of them.
UNREAD = """--rampup-batch-size 2 2 8|--step-batch-size-schedule 0:4,8:8|--train-iters 5|--train-samples 8
  |--skip-train|--lr-decay-samples 4|--lr-wsd-decay-samples 4|--lr-warmup-samples 4|--decoder-num-layers 2
  |--decoder-seq-length 16|--data-path text|--split 1,0,0|--train-data-path text|--valid-data-path text
  |--test-data-path text|--mock-data|--data-cache-path cache|--no-mmap-bin-files|--dataloader-type cyclic
  |--no-data-sharding|--reset-position-ids|--reset-attention-mask|--eod-mask-loss|--allow-ambiguous-pad-tokens
  |--mask-prob 0.2|--short-seq-prob 0.2|--mid-level-dataset-surplus 0.1|--eval-iters 5|--eval-interval 2
  |--eval-global-batch-size 8|--data-args-path x|--per-split-data-args-path x|--fim-data|--fim-rate 0.2
  |--fim-spm-rate 0.2|--fim-split-sample x|--fim-fragment-rate 0.2|--fim-no-prefix x|--fim-prefix-token x
  |--fim-middle-token x|--fim-suffix-token x|--fim-pad-token x|--fim-eod-token x
  |--cross-entropy-loss-fusion|--cross-entropy-fusion-impl linear|--cross-entropy-chunk-size 4|--fp8-output-proj
  |--log-validation-ppl-to-tensorboard|--tokenizer-hf-include-special-tokens|--mtp-num-layers 1|--mtp-use-repeated-layer
  |--mtp-loss-scaling-factor 0.2|--mtp-detach-heads|--hybrid-layer-pattern *-|--mamba-state-dim 4|--mamba-head-dim 4
  |--mamba-num-groups 2|--mamba-num-heads 4|--mamba-dt-min 0.01|--experimental-attention-variant gdn
  |--linear-attention-freq 2|--linear-conv-kernel-dim 3|--linear-key-head-dim 4|--linear-value-head-dim 4
  |--linear-num-key-heads 2|--linear-num-value-heads 4|--attention-output-gate""".split("|")


tuned("epochs global_batch_size", "--epochs 3 --global-batch-size 8")  # each epoch has one step


def options_of(program, command):
    """Returns the fields of the options that the command reads, and their classes."""
    names = set(re.findall(r"^  --(\S+)", program.call(command, "--help"), re.M))
    return {f: class_ for f, (_, class_, _, name) in declared.declared().items() if name in names}


def check_complete(program, quick):
    options = options_of(program, "finetune")
    judged, exempt = {f for row in ROWS for f in row.fields}, {f for fields, *_ in [*UNCHANGED, *REFUSED]
                                                               for f in fields.split()}
    missing = {f for f, class_ in options.items() if class_ != "LAYOUT"} - judged - exempt
    expect(not missing, f"neither a row in options/task_rows.py nor a reason: {sorted(missing)}")
    expect(not (judged | exempt) - options.keys(),
           f"no options of finetune: {sorted((judged | exempt) - options.keys())}")
    unread, names = {words.split()[0][2:] for words in UNREAD}, {name for f, (*_, name) in declared.declared().items()
                                                                 if f in options_of(program, "pretrain").keys()
                                                                 - options}
    expect(unread == names, f"options of pretrain alone, and options of UNREAD, differ in {sorted(unread ^ names)}")
    expect(not judged & exempt, f"a row and a reason to have none: {sorted(judged & exempt)}")
    weights = TaskTrainer(program.words()).state.weights
    expect(sum(w.size for w in weights.values()) <= TERMS, "a norm has more terms than the bound says")


def check_unchanged(program, quick):
    """Checks all options of UNCHANGED with the same `like` in one run."""
    for like in sorted({like for _, _, like, _ in UNCHANGED}):
        run = tune(program, program.words(like + " " + " ".join(words for _, words, of, _ in UNCHANGED if of == like)))
        expect(bits(run) == bits(tune(program, program.words(like))),
               f"an option that is to change nothing changes bits, with {like or 'nothing'}")
    for _, words in REFUSED:
        program.call("finetune", *program.words(words), status=2)
    for words in map(str.split, UNREAD):
        said = program.call("finetune", *program.words(), *words, status=2)
        expect(f"{words[0]} is not used in finetune" in said, f"not refused: {words}, but {said}")


if __name__ == "__main__":
    MORE = [Row(["complete"], check_complete, family="finetune"),
            Row(["unchanged"], check_unchanged, family="finetune")]
    sys.exit(judge.main(__doc__, ROWS, {"finetune": BASE}, write_files, MORE))
