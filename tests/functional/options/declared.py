"""Reads the options from src/config/options.def, and lists those that change no number."""
import pathlib
import re

from program import Wrong, bits, compare, expect, merged
from table import BASES, FP8, ROWS, reference
from trainer import Options

OPTIONS_DEF = pathlib.Path(__file__).resolve().parents[3] / "src/config/options.def"

# (fields, words, like, reason): a run with `words` must be bitwise equal to a run with `like`.
UNCHANGED = [
    ("exit_duration_in_mins exit_signal_handler exit_signal",
     "--exit-duration-in-mins 60 --exit-signal-handler --exit-signal SIGUSR1", "",
     "affects only when a run ends, by time or signal: functional/interrupt"),
    ("attention_softmax_in_fp32 accumulate_allreduce_grads_in_fp32 mmap_bin_files save_rng load_rng",
     "--attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32 --no-mmap-bin-files --no-save-rng"
     " --no-load-rng", "", "always the case"),
    ("deterministic_mode gemm_tuning", "--no-deterministic-mode --gemm-tuning off", "", "affects only GPU kernels"),
    ("data_cache_path num_workers", "--data-cache-path cache --num-workers 5", "",
     "affects only where an index is cached, and prefetching"),
    ("distributed_timeout_minutes", "--distributed-timeout-minutes 5", "",
     "affects only when a hung run ends: functional/faults"),
    ("distributed_backend", "--distributed-backend gloo", "", "affects only memory of GPUs"),
    ("distributed_timeout_seconds", "--distributed-timeout-seconds-after-init 300", "", "the same"),
    ("use_precision_aware_optimizer", "--lane fp32 --use-precision-aware-optimizer", "--lane fp32",
     "only allows other types of moments"),
    ("add_position_embedding", "--position-embedding-type rope --no-position-embedding",
     "--position-embedding-type rope", "rope has none"),
    ("mrope_section", "--position-embedding-type mrope --mrope-section 1 1", "--position-embedding-type rope",
     "text has equal positions"),
    ("fp8_emulated fp8_keep_weights fp8_keep_inputs", FP8 + "--fp8-emulated --fp8-keep-weights --fp8-keep-inputs", FP8,
     "affects only GPU kernels"),
]
REFUSED = [("gemm_sm_margin", "--gemm-sm-margin 4"), ("nccl_library", "--ranks 2 --nccl-library no-such-file"),
           # of finetune: functional/finetune
           ("task class_labels classifier_dropout train_data valid_data epochs keep_last", "--task RACE --epochs 1"),
           ("host port served_model_name api_key enable_control max_queued_requests request_timeout shutdown_timeout"
            " inference_dynamic_batching_buffer_size_gb inference_dynamic_batching_block_size"
            " inference_dynamic_batching_max_requests inference_dynamic_batching_max_tokens"
            " inference_dynamic_batching_prefix_caching_coordinator_policy"
            " inference_dynamic_batching_prefix_caching_routing_alpha",
            "--port 5000"),  # of serve: functional/serve_answers
           # of the output of generate: functional/generate_fields, functional/generate_json, functional/generate_chat
           ("inference_dynamic_batching_sampling_backend interactive skip_prompt_log_probs top_n_logprobs stream"
            " output_path output_every_n_results record_throughput"
            " throughput_check_only inference_repeat_n incoming_requests_per_step"
            " incoming_requests_per_sec suspend_resume_interval suspend_timeout"
            " rl_kv_cache_management_mode", "--stream")]

# (field, words) of options that a family does not read: a run with these words must be refused, or be bitwise equal to
# a run without them. A note must then say that they have no effect, except for options that other data, other
# vocabularies or convert read.
NOT_GPT = [("model", "--model gpt"), ("bert_binary_head", "--bert-no-binary-head"),
           ("num_token_types", "--num-token-types 3"),
           ("decoder_num_layers", "--decoder-num-layers 3"), ("decoder_seq_length", "--decoder-seq-length 48"),
           ("mask_prob", "--mask-prob 0.3"),
           ("short_seq_prob", "--short-seq-prob 0.3"),
           ("relative_attention_num_buckets", "--relative-attention-num-buckets 8"),
           ("relative_attention_max_distance", "--relative-attention-max-distance 30")]
ENCODERS = [("MOE", "--num-experts 4"), ("window_size window_attn_skip_freq rope_local_base_freq", "--window-size 3,0"),
            ("multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim"
             " latent_norm_epsilon mla_rotary_interleaved rope_type",
             "--multi-latent-attention"),
            ("hybrid_layer_pattern mamba_state_dim mamba_head_dim mamba_num_groups mamba_num_heads mamba_dt_min",
             "--hybrid-layer-pattern *-"),
            ("experimental_attention_variant linear_attention_freq linear_conv_kernel_dim linear_key_head_dim"
             " linear_value_head_dim linear_num_key_heads linear_num_value_heads",
             "--experimental-attention-variant gdn --linear-attention-freq 2"),
            ("attention_output_gate", "--attention-output-gate"),
            ("qk_clip qk_clip_alpha qk_clip_threshold log_max_attention_logit", "--qk-clip --log-max-attention-logit"),
            ("add_output_layer_bias", "--add-output-layer-bias"),
            ("attention_chunk_size", "--position-embedding-type rope --attention-chunk-size 4"),
            ("no_rope_temperature_scale no_rope_temperature_floor",
             "--position-embedding-type rope --no-rope-freq 2 --no-rope-temperature-scale 0.1"),
            ("rope_temperature_scale rope_temperature_floor",
             "--position-embedding-type rope --rope-temperature-scale 0.1"),
            ("mtp_num_layers mtp_loss_scaling_factor mtp_use_repeated_layer mtp_detach_heads", "--mtp-num-layers 1"),
            ("use_mup mup_base_hidden_size mup_base_head_dim mup_attn_scale_power mup_embedding_mult mup_output_mult",
             "--use-mup"),
            ("eod_mask_loss", "--eod-mask-loss"), ("reset_position_ids", "--reset-position-ids"),
            ("reset_attention_mask", "--reset-attention-mask"),
            ("null_tokenizer_eod_id null_tokenizer_pad_id", "--null-tokenizer-eod-id 5 --null-tokenizer-pad-id 5"),
            ("fim_data fim_rate fim_spm_rate fim_split_sample fim_fragment_rate fim_no_prefix fim_prefix_token"
             " fim_middle_token fim_suffix_token fim_pad_token fim_eod_token", "--fim-data"),
            ("allow_ambiguous_pad_tokens", "--allow-ambiguous-pad-tokens"),
            ("make_vocab_size_divisible_by", "--make-vocab-size-divisible-by 64"),
            ("log_memory_to_tensorboard", "--log-memory-to-tensorboard"),  # GPT's row has a BERT too
            ("padded_vocab_size", "--padded-vocab-size 64"),
            ("tokenizer_hf_include_special_tokens", "--tokenizer-hf-include-special-tokens"),
            ("merge_file", "--merge-file vocab.txt"),
            ("tiktoken_pattern tiktoken_num_special_tokens", "--tiktoken-pattern v1 --tiktoken-num-special-tokens 10")]
CONVERTED = ("hf_model_type", "--hf-model-type gpt2")  # only convert reads it; a type of another --model is refused
SILENT = {"model", "hf_model_type", "allow_ambiguous_pad_tokens", "make_vocab_size_divisible_by", "padded_vocab_size",
          "tokenizer_hf_include_special_tokens", "cross_entropy_loss_fusion"}
UNREAD = {
    "gpt": [*NOT_GPT, CONVERTED],
    "bert": [CONVERTED, *ENCODERS, *(pair for pair in NOT_GPT if pair[0].startswith(("decoder", "relative"))),
             ("GENERATE", "--top-k 2"),
             ("logits_scaling", "--logits-scaling 2"), ("final_logit_softcapping", "--final-logit-softcapping 2"),
             ("cross_entropy_loss_fusion", "--cross-entropy-loss-fusion"),
             ("cross_entropy_fusion_impl cross_entropy_chunk_size",
              "--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear")],
    "t5": [CONVERTED, *ENCODERS, *(pair for pair in NOT_GPT if pair[0] in ("bert_binary_head", "num_token_types")),
           ("GENERATE", "--top-k 2"),
           ("group_query_attention num_query_groups", "--group-query-attention --num-query-groups 2"),
           ("qk_layernorm qk_layernorm_whole qk_layernorm_after_rope apply_wd_to_qk_layernorm", "--qk-layernorm"),
           ("softmax_type", "--softmax-type off-by-one"),
           ("alibi_bias_max", "--position-embedding-type alibi --alibi-bias-max 3"),
           ("embedding_layernorm", "--embedding-layernorm"),
           ("qk_l2_norm qk_l2_norm_rope_layers_only", "--qk-l2-norm"),
           ("alibi_bias_max", "--position-embedding-type alibi"),
           ("norm_placement", "--norm-placement sandwich"), ("parallel_residual", "--parallel-residual two-norms"),
           ("no_rope_freq", "--position-embedding-type rope --no-rope-freq 2")]}


def declared():
    """Returns {field: (group, class, type, name of the option)}."""
    group, found = None, {}
    row = r'^OPTGROUP\((\w+)|^OPT(?:NUM|ENUM)?\((\w+), (\w+),[^"]* ([A-Z]+)(?: \| \w+(?:\(\w+\))?)*,\s+"([^"|]+)'
    for title, kind, field, class_, name in re.findall(row, OPTIONS_DEF.read_text(), re.M):
        group = title or group
        if field:
            found[field] = group, class_, kind, name
    return found


def tables_of(field):
    """Returns the tables in src/config that mention the option. The files of rules count as one table."""
    config = OPTIONS_DEF.parent
    return {path.relative_to(config).parts[0].removesuffix(".def") for path in config.rglob("*.def")
            if re.search(rf"(->|, |\(){field}\b", path.read_text())}


def check_complete(program, quick):
    """Reports options that have neither a row nor a reason for a family, rows or reasons without an option, and options
    that are mentioned in too many tables."""
    options, found = declared(), []
    exempt = {f for fields, *_ in [*UNCHANGED, *REFUSED] for f in fields.split()}
    for family in BASES:
        judged, unread = ({f for fields in table for f in fields} for table in (
            [row.fields for row in ROWS if row.family == family], [fields.split() for fields, _ in UNREAD[family]]))
        unread = {f for f, (group, *_) in options.items() if f in unread or group in unread}
        found += [f"{family}: {field} has neither a row in options/rows.py nor a reason in options/declared.py why it"
                  " changes no number" for field, (_, class_, *_) in options.items()
                  if class_ != "LAYOUT" and field not in judged | exempt | unread]
        found += [f"{field} is no option of options.def" for field in (judged | exempt) - options.keys()]
        found += [f"{family}: {field} has a row and a reason to have none" for field in judged & (exempt | unread)]
    found += [f"{field} is in the tables {sorted(tables)}: two are enough" for field in options
              if len(tables := tables_of(field)) > 2]
    expect(not found, "\n".join(found))


def check_unread(program, quick):
    family = Options(program.base).text("model", "gpt")
    plain = bits(program.pretrain(program.words()))
    for fields, words in UNREAD[family]:
        try:
            run = program.pretrain(program.words(words))
        except Wrong:
            program.pretrain(program.words(words), status=2)
            continue
        expect(bits(run) == plain, f"{fields}: {words} changes a {family}")
        noted = re.search(rf"note: .*{words.split()[0]}\b.* no effect", run.text)
        expect(bool(noted) != (fields in SILENT),
               f"{fields}: a {family} {'notes' if noted else 'silently ignores'} {words}")


def check_unchanged(program, quick):
    """Checks all options of UNCHANGED with the same `like` in one run."""
    for like in sorted({like for _, _, like, _ in UNCHANGED}):
        plain = program.words(like)
        more = " ".join(words for _, words, of, _ in UNCHANGED if of == like)
        run = program.pretrain(program.words(like + " " + more))
        compare(run, reference(*plain), plain)
        expect(bits(run) == bits(program.pretrain(plain)),
               f"an option that is to change nothing changes bits, with {like or 'nothing'}")
    for _, words in REFUSED:
        program.pretrain(program.words(words), status=2)


def spellings():
    """Returns {spelling of an option: field}."""
    text, found = re.sub(r'"\s*"', "", OPTIONS_DEF.read_text()), {}
    row = r'^OPT(?:NUM|ENUM)?\(\w+, (\w+),[^"]* [A-Z]+(?: \| \w+(?:\(\w+\))?)*,\s+"([^"]+)"'
    for field, names in re.findall(row, text, re.M):
        found |= {re.sub("=.*", "", name.lstrip("~")): field for name in names.split("|")}
    return found


# Options that no note names, although they change no result of the base run. With other data, models or options they
# do, or they change only what is printed.
QUIET = {"mid_level_dataset_surplus", "qk_clip", "calculate_per_token_loss", "null_tokenizer_eod_id",
         "cross_entropy_loss_fusion", "log_throughput", "log_format", "timing_log_level"}


def check_noted(program, quick):
    """Tries each option alone, with its value in the first row that uses it. If a note says that an option has no
    effect, the option must change nothing. All others must change something or be refused."""
    family, names, tried = Options(program.base).text("model", "gpt"), spellings(), {}
    for words in [row.words for row in ROWS] + [words for _, words, *_ in UNCHANGED]:
        for name, values in Options(words.split()).items():
            tried.setdefault(names[name], (f"--{name}", *values))
    exempt = {f for fields, *_ in [*UNCHANGED, *UNREAD[family]] for f in fields.split()} | QUIET
    plain, idle = bits(program.pretrain(program.words())), []
    for field, words in tried.items():
        o = merged(program.base, words)
        try:
            text = program.call("pretrain", *o, "--check-options")
        except Wrong:
            continue
        if re.search(rf"^note: .*{words[0]}\b.* no effect", text, re.M):
            idle += words
        elif o != program.base and field not in exempt and declared()[field][1] != "LAYOUT":
            expect(bits(program.pretrain(o)) != plain, f"{words}: no note says that the option has no effect")
    expect(bits(program.pretrain(program.words(" ".join(idle)))) == plain, "an option that a note names has an effect")
