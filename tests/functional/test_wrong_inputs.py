"""An invalid command line ends with a message that names the error, and changes no file. A row has the command, the
parts that the message must contain (separated by |), and the exit status if it is not 2. The help that a message points
to is tested too."""
import os
import pathlib
import re
import signal
import subprocess
import time

from harness import *

ROWS = """
pretrian => unknown command 'pretrian', did you mean 'pretrain'
--hlep => unknown command '--hlep'
server => unknown command 'server': use 'serve'
run_inference_server.py => use 'serve'
chat => 'generate' continues prompts or, with --interactive, answers messages
eval --load {saved} => evaluate with 'pretrain --skip-train
evaluate => 'pretrain --skip-train
lm-eval => 'pretrain --skip-train
sft => 'pretrain --load DIR --finetune'
train => use 'pretrain'
quantize => train in 8 bits with 'pretrain --fp8-format
pretrain_gpt.py --num-layers 2 => use 'pretrain'
pretrain_bert => use 'pretrain --model bert'
tools/pretrain_t5.py => use 'pretrain --model t5'
preprocess_data.py => use 'preprocess'
export => use 'convert --load DIR --to-hf DIR'
e => unknown command 'e'; 'isotron --help' lists all commands
{empty} => unknown command
help server => use 'serve'
pretrain {run} --laod x => '--laod' is not an option: did you mean --load?
pretrain {run} --freeze-parameters decoder.layers.0 decoder.layer => --freeze-parameters decoder.layer: the model has no parameter or module with this name
pretrain {run} --freeze-parameters embedding decoder => leaves no parameter to train: freeze fewer
pretrain {run} --esed 3 => did you mean --seed?
pretrain {run} --step-batch-size-schedule 0:32 2B:64 4B:96 --lr 1 => '2B:64' does not belong to any option: quote the whole value of --step-batch-size-schedule
generate {ask} --inference-rng-tracker --moe-router-pre-softmax-x 1 => '--moe-router-pre-softmax-x' is not an option
pretrain --num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --train-iters 1 --micro-batch-size 1 --lr 1 --mock-data --vocab-file {text} => set --model bert or --model t5
bench comm => bench comm needs at least 2 ranks: set --ranks N
help pretrian => did you mean 'pretrain'
help merge input more => remove 'more'
pretrain --hiden-size 64 => '--hiden-size' is not an option: did you mean --hidden-size?
pretrain --num-layers => --num-layers expects a value, but none follows
pretrain --num-layers two => --num-layers expects a whole number, not 'two'
pretrain --num-layers 2.5 => expects a whole number, not '2.5'
pretrain --num-layers 0 => --num-layers must be from 1 to 65536, not 0
pretrain --num-layers -3 => not -3
pretrain --num-layers 99999999999999999999 => a number of magnitude at most 9223372036854775807
pretrain --lr 1e999 => a number of magnitude at most 1.8e308, not '1e999'
pretrain --lr 1e-400 => a number of magnitude at least 4.9e-324, not '1e-400'
pretrain {run} --save= --save-interval 2 => --save expects a value, not ''
pretrain {run} --load= => --load expects a value, not ''
pretrain {run} --log-jsonl= => --log-jsonl expects a value, not ''
convert --from-hf {hf} --save {work}/x --check= => --check expects a value, not ''
parity {case} --sweep= => --sweep expects a value, not ''
parity {case} --json= => --json expects a value, not ''
preprocess --input {text} --output-prefix= => --output-prefix expects a value, not ''
merge --input= --output-prefix {work}/m => --input expects a value, not ''
merge --input {work}/pairs --output-prefix= => --output-prefix expects a value, not ''
generate {ask} --stop= => --stop expects a value, not ''
bench train {bench} --against x --allow= => --allow expects a value, not ''
bench train {bench} --baseline= => --baseline expects a value, not ''
pretrain --lr fast => --lr expects a number, not 'fast'
pretrain --lr nan => --lr expects a number, not 'nan'
pretrain --activation elu => --activation expects one of gelu|not 'elu'
pretrain --window-size 1,x => --window-size expects whole numbers, not '1,x'
pretrain --bf16=maybe => --bf16 expects true or false, not 'maybe'
pretrain stray --num-layers 2 => 'stray' does not belong to any option
pretrain --config => --config expects the path of a file
pretrain --config {work}/absent => cannot open|absent
pretrain --config {work} => Is a directory
pretrain --config {data}.bin => .bin:1: the line contains a NUL byte
pretrain --prompt hi => --prompt is not used in pretrain: remove it
pretrain --top-k 3 => --top-k is not used in pretrain
pretrain --quantization fp8 => --quantization is not used in pretrain
pretrain --input x => '--input' is not an option
pretrain {run} --add-mlp-bias => --add-mlp-bias has no effect without --disable-bias-linear: remove it
pretrain {run} --add-attn-proj-bias => --add-attn-proj-bias has no effect without --disable-bias-linear: remove it
pretrain {run} --rope-scaling-low-freq-factor 2 => has no effect without --use-rope-scaling: remove it
pretrain {run} --window-attn-skip-freq 2 => has no effect without --window-size
pretrain {run} --rope-attention-factor 2 => has no effect unless --rope-short-factor
pretrain {run} --disable-norm-weight --apply-layernorm-1p => --apply-layernorm-1p changes the norm weights that --disable-norm-weight removes: remove one of these options.
pretrain {run} --normalization RMSNorm --disable-norm-bias => --disable-norm-bias has no effect without --normalization LayerNorm
pretrain {run} --add-output-layer-bias --cross-entropy-loss-fusion --cross-entropy-fusion-impl linear => does not support a bias in the output layer
pretrain {run} --qk-layernorm-whole => needs --qk-layernorm
pretrain {run} --cross-entropy-chunk-size 5 => --cross-entropy-loss-fusion
pretrain {run} --gemm-sm-margin 4 => needs --device cuda
pretrain {run} --cuda-graph-impl local => needs --device cuda
pretrain {run} --bf16 --fp8-format e4m3 --te-precision-config-file {work}/absent.yaml => absent.yaml
pretrain {run} --bf16 --fp8-format e4m3 --te-precision-config-file {lines} => lines:1:|the file has the key 'text'
pretrain {run} --fp8-keep-inputs => Add --fp8-format
pretrain {run} --bf16 --fp8-format hybrid --fp8-keep-weights --ranks 2 --use-distributed-optimizer --cuda-graph-impl local => before a step's CUDA graph, but that graph gathers the weights
pretrain {run} --hidden-size 50 => not a multiple of --num-attention-heads 4
pretrain {run} --num-attention-heads 5 => not a multiple of --num-query-groups 2
pretrain {run} --tensor-model-parallel-size 3 => not a multiple of --tensor-model-parallel-size 3
pretrain {run} --ranks 3 --tensor-model-parallel-size 2 => --ranks 3 is not a multiple
pretrain {run} --micro-batch-size 3 => must be a multiple of --micro-batch-size 3 times the data-parallel size 1
pretrain {run} --lr-warmup-iters 12 => --lr-warmup-iters 12 must be less than the 12 iterations of the decay
pretrain {run} --train-samples 5 => --train-iters 12 and --train-samples 5 are mutually exclusive
pretrain {run} --hidden-dropout 1 => must be less than 1
pretrain {run} --seq-length 64 --max-position-embeddings 32 => --seq-length 64 is longer than
pretrain {run} --vocab-size 40 => ByteLevelTokenizer needs a --vocab-size of at least 256
pretrain {run} --padded-vocab-size 511 => --padded-vocab-size 511 is less than the 512 tokens of the ByteLevelTokenizer: raise or remove it
pretrain {run} --save {work}/run.conf --save-interval 2 => is not a folder
pretrain {run} --save {saved} --save-interval 0 => --save-interval must be at least 1
pretrain {run} --load {work}/absent --exit-on-missing-checkpoint => contains no checkpoint
pretrain {run} --load {saved} --ckpt-step 7 => iter_0000007|intact checkpoint is '|iter_0000001
pretrain {run} --load {saved} --num-layers 3 => --num-layers is 3, but the checkpoint has 2
pretrain {run} --load {work}/megatron => iter_0000003' is a checkpoint of Megatron-LM|isotron convert --from-hf
pretrain {run} --load {work}/released => released/release' is a checkpoint of Megatron-LM|isotron convert --from-hf
generate --load {work}/megatron --prompt hi => is a checkpoint of Megatron-LM
pretrain {run} --load {data}.bin => Not a directory
pretrain {conf} --data-path {data}.bin => is one of a dataset's two files; remove the suffix .bin
pretrain {conf} --data-path {data}.idx => is one of a dataset's two files; remove the suffix .idx
pretrain {conf} --data-path 0.7 {data} 0.3 => ends with the weight 0.3, but no prefix
pretrain {conf} --data-path 0.7 {data} x {data} => mixes prefixes with and without a weight
pretrain {conf} --data-path -1 {data} 2 {data} => the weight -1|must be a positive number
pretrain {conf} --data-path {work}/absent => cannot open|absent.idx
pretrain {conf} --data-path {work}/corpus => did you mean|corpus_text_document
pretrain {conf} => Training needs data
pretrain {conf} --data-args-path /dev/null => '/dev/null' is not a text file with paths of datasets
pretrain {conf} --data-args-path {data}.bin => is not a text file with paths of datasets
pretrain {conf} --mock-data --data-path {data} => --mock-data cannot be used with data paths
pretrain {run} --split 90,x,1 => 'x' in the split '90,x,1'
pretrain {run} --split 1,1,1,1 => more than three parts
pretrain {run} --tokenizer-type Tokenizer => unknown tokenizer type 'Tokenizer'
pretrain {run} --tokenizer-type HuggingFaceTokenizer => needs --tokenizer-model
pretrain {run} --tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2 => cannot open 'gpt2'; Isotron does not download
pretrain {run} --tokenizer-type HuggingFaceTokenizer --tokenizer-model t.model => cannot open 't.model'
pretrain {run} --tokenizer-type HuggingFaceTokenizer --tokenizer-model {work}/deep => tokenizer.json' is nested too deeply
pretrain {run} --tokenizer-type NullTokenizer => NullTokenizer needs --vocab-size
pretrain {run} --fim-data => the ByteLevelTokenizer lacks these tokens that --fim-data needs|'<fim_prefix>' (--fim-prefix-token)|(--fim-eod-token);
pretrain {run} --fim-data --fim-split-sample x --fim-fragment-rate 1 --fim-pad-token none => 'none' (--fim-pad-token)|'x' (--fim-split-sample);
pretrain {run} --fim-data --fim-split-sample x => --fim-split-sample needs --fim-fragment-rate
pretrain {conf} --mock-data --fim-data => replace --mock-data with --data-path
pretrain {run} --log-jsonl {work}/absent/log => --log-jsonl
pretrain {run} --log-jsonl {work}/run.conf => run.conf' is not a log|choose another file
pretrain {run} --log-jsonl {data}.idx => is not a log
pretrain {run} --device gpu => --device expects one of cpu, cuda
pretrain {run} --cpu-threads 5000 => --cpu-threads must be from 0 to 4096
pretrain {run} --seed -1 => --seed must be from 0
pretrain {run} --recompute-granularity half => --recompute-granularity expects one of
pretrain {run} --pipeline-model-parallel-size 3 => 2 layers cannot be divided evenly among 3 pipeline ranks
pretrain {run} --context-parallel-size 3 => not a multiple of twice --context-parallel-size 3
pretrain {run} --num-experts 3 --moe-shared-expert-intermediate-size 8 => needs --disable-bias-linear
pretrain {run} --fp16 --loss-scale 0 => --loss-scale must be from
pretrain {run} --min-lr 1 => --min-lr 1 is above --lr
pretrain {run} --clip-grad -1 => --clip-grad must be from 0
pretrain {run} --adam-beta1 1 => --adam-beta1 1 must be at least 0 and less than 1
pretrain {run} --exp-avg-dtype bf16 => need --use-precision-aware-optimizer
pretrain {check} --hidden-size 50 => not a multiple of --num-attention-heads 4
pretrain {check} --tokenizer-type HuggingFaceTokenizer --tokenizer-model {work}/absent => options are valid, 0 have no effect|absent
pretrain {check} --tokenizer-type NullTokenizer --vocab-size 64 => NullTokenizer, vocabulary of 64|made with another tokenizer
pretrain {check} --load {saved} --vocab-size 600 => has 600 tokens, but the model in|has 512
pretrain {check} --load {saved} --num-layers 3 => --num-layers is 3, but the checkpoint has 2
pretrain {check} --load {saved} --ckpt-step 7 => iter_0000007|intact checkpoint is '|iter_0000001
pretrain {check} --load {lean} => has no optimizer state (it was saved with --no-save-optim)
pretrain {check} --load {work}/absent => contains no checkpoint
pretrain {check} --save {saved} --save-interval 2 => to continue that run
pretrain {check} --save {work}/run.conf/x --save-interval 2 => is not a folder
pretrain {check} --save {work}/lines/x/y --save-interval 2 => lines
pretrain {check} --save /proc/x/y --save-interval 2 => '/proc'
pretrain {check} --log-jsonl {work}/absent/log => absent
pretrain {check} --log-jsonl {data}.idx => is not a log
pretrain {check} --tensorboard-dir {work}/lines => is not a folder
pretrain {check} --eval-iters 1 --eval-interval 1 => the data has no validation samples
pretrain {conf} --check-options --mock-data --data-path {data} => --mock-data cannot be used with data paths
pretrain {conf} --check-options --data-path {work}/absent --load {work}/other --log-jsonl {lines} --tensorboard-dir {empty} => absent.idx|other' contains no|empty' exists
pretrain {conf} --check-options --data-path 1 {data} 2 {work}/half/a => half/a.idx
pretrain {conf} --check-options --data-path {data} --data-cache-path {lines} => lines' exists and is not a folder
pretrain {conf} --check-options --train-data-path {data} --valid-data-path {work}/absent --eval-iters 1 => absent.idx
pretrain {conf} --check-options --train-data-path {data} --valid-data-path {work}/pairs/wide --eval-iters 1 => pairs/wide|65535
pretrain {conf} --check-options --train-data-path {data} --test-data-path {work}/pairs/wide --eval-iters 1 => pairs/wide|65535
generate => --load is missing
generate --load {saved} => Generation needs --prompt
generate --load {work}/absent --prompt hi => contains no checkpoint
generate --load {data}.bin --prompt hi => Not a directory
generate --load {saved} --prompt hi --prompts-file {text} => are mutually exclusive
generate --load {saved} --prompts-file {work}/absent => cannot open|absent
generate --load {saved} --prompts-file {empty} => there is nothing to continue
generate --load {saved} --prompts-file {work}/latin1 => latin1', line 1: byte 0xe9 at offset 2 is not UTF-8
generate {ask} --lr fast => --lr expects a number, not 'fast'
generate {ask} --data-path --lr 1 => --data-path expects a value, but none follows
generate {ask} --micro-batch-size=2.5 => expects a whole number, not '2.5'
generate {ask} --optimizer soap => --optimizer soap is not supported
generate {ask} --log-jsonl x => --log-jsonl is not used in generate: remove it
generate {ask} --tensor-model-parallel-size 2 --ranks 3 => is not a multiple
generate {ask} --top-k 3 --top-p 0.5 => are mutually exclusive
generate {ask} --top-p 2 => --top-p must be from 0 to 1
generate {ask} --temperature -1 => --temperature must be from 0
generate {ask} --temperature 0 --top-k 3 => --top-k has no effect without a --temperature above 0: remove it
generate {ask} --temperature 0 --random-seed 3 => --random-seed has no effect without random sampling
generate {ask} --tokens-to-generate 1e3 => expects a whole number, not '1e3'
generate {ask} --num-layers 3 => --num-layers is 3, but the checkpoint has 2
generate {ask} --ckpt-step 99 => intact checkpoint is '|iter_0000001
generate {ask} --device tpu => --device expects one of cpu, cuda
parity => name the golden case first
parity {work} => is not a golden case
parity {case} {root}/golden/llama-gqa => several golden cases need --sweep
parity {case} --junit {work}/r.xml => --junit is not used without --sweep: remove it
parity {case} --html {work}/r.html => --html is not used without --sweep
parity {case} --sweep-jobs 2 => --sweep-jobs is not used without --sweep
parity {case} --sweep-deadline 3 => --sweep-deadline is not used without --sweep
parity {case} --sweep-dry-run => --sweep-dry-run is not used without --sweep
parity {case} --load {saved} => --load is not used in parity
parity {case} --save {work}/x => --save is not used in parity
parity {case} --data-path x --prompt hi => --data-path is not used in parity|--prompt is not used in parity
parity {case} --exit-interval 2 => --exit-interval is not used in parity
parity {case} --tokenizer-type ByteLevelTokenizer => --tokenizer-type is not used in parity
parity {case} --init-method-std 0.1 => --init-method-std is not used in parity
parity {case} --rotary-base 5 => has no effect without --position-embedding-type rope: remove it
parity {case} --sgd-momentum 0.5 => has no effect without --optimizer sgd: remove it
parity {case} --json {work}/absent/r.json => cannot create a file in
parity {case} --json {work}/run.conf --config {work}/run.conf => --json and --config are the same file '{work}/run.conf': choose another path
parity {mine} --json {mine}/curve.json => --json is the file|of the golden case
parity {mine} --sweep {work}/good.list --html {work}/mine/../mine/init.safetensors => --html is the file|of the golden case
parity {case} --json {text} => exists and is not a parity report
parity {case} --sweep {work}/good.list --html {text} => exists and is not a parity report
parity {case} --sweep {work}/good.list --junit {work}/good.list => --junit and --sweep are the same file
parity {case} --sweep {work}/good.list --junit {work}/dangling --html {work}/nothing => --junit and --html are the same file
parity {case} --sweep {work}/absent => cannot open|absent
parity {case} --sweep {empty} => has no cell for the given cases
parity {case} --sweep {work}/typo.list => typo.list:3: 'gpt2-tyni' is neither a precision nor a golden case; the cases are gpt2-tiny
parity {case} --sweep {work}/fp8.list => fp8.list:1: --fp8-format is not used in a cell, because all cells are compared with the same runs
parity {case} --sweep {work}/precision.list => precision.list:1: 'fp65' is not a precision: use fp64
parity {case} --sweep {work}/option.list => option.list:1: '--rank' is not an option: did you mean --ranks?
parity {case} --sweep {work}/unread.list => unread.list:1: --save is not used in parity
parity {case} --sweep {work}/good.list --junit {work}/absent/r.xml => cannot create a file in
parity {case} --sweep {work}/good.list --load {saved} => --load is not used in parity
parity {case} --sweep {work}/good.list --sweep-jobs many => expects a whole number, not 'many'
parity {case} {case} --sweep {work}/good.list => two cases have the name
convert => Set either --from-hf or --to-hf
convert --from-hf {hf} => --from-hf needs --save
convert --to-hf {work}/x => --to-hf needs a checkpoint
convert --from-hf {hf} --save {saved} => already contains checkpoints of a run, the newest of step 1
convert --from-hf {hf} --save {saved} --overwrite => already contains checkpoints of a run, the newest of step 1
convert --from-hf {hf} --save {work}/imported => the newest of step 0|--overwrite
convert {import} --load {saved} => --load is not used with --from-hf
convert {import} --fp8-format hybrid => --fp8-format is not used in convert
convert {import} --device cuda => --device is not used in convert
convert {import} --save-interval 3 => --save-interval is not used in convert
convert {import} --hf-dtype float16 => --hf-dtype is not used with --from-hf
convert {import} --bf16 => a checkpoint stores weights as fp32
convert {import} --attention-backend unfused => --attention-backend is not used without --check
convert {import} --tokenizer-type HuggingFaceTokenizer --tokenizer-model {text} => is not valid JSON
convert --from-hf org/name --save {work}/x => 'org/name' is not a folder; Isotron does not download
convert --from-hf {case} --save {work}/x => is a golden case|isotron parity
convert --from-hf {work}/deep --save {work}/x => config.json' is nested too deeply
convert --from-hf {work}/bert --save {work}/x => model_type is "clip", but only gpt2
convert --load {saved} --to-hf {hf} => is not empty|--overwrite
convert --load {saved} --to-hf {text} => Not a directory
convert {export} --save {work}/y => --save is not used without --from-hf
convert {export} --fp64 => --lane is not used without --from-hf
convert {export} --hf-dtype int8 => --hf-dtype expects one of float32
convert {export} --lr 3 => --lr is not used in convert
convert {export} --seed 3 => --seed is not used without --from-hf
convert {export} --norm-epsilon 0.3 => contains a different model: --norm-epsilon
convert --load {work}/absent --to-hf {work}/x => contains no checkpoint
convert --load {saved} --check {text} --hf-dtype float16 => --hf-dtype is not used without --to-hf
pretrain --tokenizer-sentencepiece-legacy => split texts at special tokens
pretrain --no-tokenizer-sentencepiece-ignore-extra-whitespaces => keep consecutive blanks
preprocess => needs a tokenizer: set --tokenizer-type|--input is required|--output-prefix is required
preprocess --input {lines} --output-prefix {work}/corpus {bytes} => corpus_text_document.bin' exists|--overwrite
preprocess --input {text} --output-prefix {work}/p {bytes} => line 1 of|not valid JSON|for plain text set --input-format text or paragraphs
preprocess --input {empty} --output-prefix {work}/p {bytes} => documents but no text; nothing is written
preprocess --input {lines} {work}/absent --output-prefix {work}/p {bytes} => cannot open|absent
preprocess --input {work} --output-prefix {work}/p {bytes} => is a folder
preprocess --input {lines} --output-prefix {work}/absent/p {bytes} => cannot create a file in|absent'
preprocess --input {data}.bin --output-prefix {work}/corpus {bytes} --overwrite => .bin' is both an input and an output
preprocess --input {text} {work}/link --output-prefix {work}/corpus {bytes} --overwrite => link' is both an input and an output
preprocess {tokens} {bytes} --workers 0 => --workers must be from 1 to 1024
preprocess {tokens} {bytes} --partitions 0 => --partitions must be from 1 to 1024
preprocess {tokens} {bytes} --partitions 4 --workers 6 => --workers 6 is not a multiple of --partitions 4: set --workers 8
preprocess {tokens} {bytes} --keep-sequential-samples --json-keys title => --keep-sequential-samples has no effect without --partitions|no key
preprocess {tokens} {bytes} --workers-to-check 4 => --workers-to-check is not used without --find-optimal-num-workers
preprocess {tokens} {bytes} --max-documents 4 => --max-documents is not used without --find-optimal-num-workers
preprocess {tokens} {bytes} --find-optimal-num-workers --max-documents 0 => --max-documents must be from 1
preprocess {tokens} {bytes} --find-optimal-num-workers --workers-to-check 0 => --workers-to-check must be from 1
preprocess {tokens} {bytes} --find-optimal-num-workers --partitions 2 --workers-to-check 3 => 3 is skipped|needs a multiple of --partitions
preprocess --input - --output-prefix {work}/p {bytes} --find-optimal-num-workers => reads the input several times
preprocess {tokens} {bytes} --log-interval 0 => --log-interval must be at least 1
preprocess {tokens} {bytes} --lang german => --lang is not used without --split-sentences
preprocess {tokens} {bytes} --json-keys title => there is no key 'title'
preprocess {tokens} {bytes} --json-keys text text => the key 'text' is given twice
preprocess {tokens} {bytes} --input-format text --json-keys text => --json-keys applies only to JSON Lines
preprocess {tokens} {bytes} --input-format csv => --input-format expects one of jsonl
preprocess {tokens} {bytes} --tokenizer-model {text} => --tokenizer-model has no effect without
preprocess {tokens} {bytes} --vocab-file {text} => --vocab-file has no effect without
preprocess {tokens} {bytes} --null-tokenizer-eod-id 3 => --null-tokenizer-eod-id has no effect without
preprocess {tokens} {bytes} --null-tokenizer-pad-id 3 => --null-tokenizer-pad-id has no effect without
preprocess {tokens} --tokenizer-type NullTokenizer --vocab-size 10 --null-tokenizer-pad-id 10 => the padding id 10 is not in the vocabulary
preprocess {tokens} {bytes} --num-layers 3 => --num-layers is not used in preprocess
preprocess {tokens} {qwen} --vocab-size 99 --json-keys title => note: --vocab-size has no effect: HuggingFaceTokenizer has|no key
preprocess {tokens} --tokenizer-type GPT2BPETokenizer --vocab-file {text} => needs --vocab-file vocab.json and --merge-file
preprocess {tokens} --tokenizer-type SFTTokenizer => isotron: --tokenizer-type SFTTokenizer is not supported
preprocess {tokens} --tokenizer-type Gpt2BPETokenizer => did you mean GPT2BPETokenizer
preprocess {tokens} --tokenizer-type NullTokenizer => NullTokenizer needs a --vocab-size
preprocess {tokens} --tokenizer-type NullTokenizer --vocab-size 0 => --vocab-size must be from 1
preprocess {tokens} --tokenizer-type NullTokenizer --vocab-size 10 => 'one' is not an id below 10
merge => --input is required|--output-prefix is required
merge --input {work}/absent --output-prefix {work}/m => cannot open the folder
merge --input {work}/bert --output-prefix {work}/m => contains no .bin and .idx pair
merge --input {work}/pairs --output-prefix {data} => exists: use another --output-prefix, or add --overwrite
merge --input {work}/pairs --output-prefix {work}/pairs/a --overwrite => is both an input and the output
merge --input {work}/pairs --output-prefix {work}/bert/../pairs/a --overwrite => is both an input and the output
merge --input {work}/pairs --output-prefix {work}/absent/m => cannot create
merge --input {work}/half --output-prefix {work}/m => a dataset needs both its .idx and its .bin file
merge --input {work}/pairs --output-prefix {work}/m --workers 3 => '--workers' is not an option
inspect => specify what to inspect
inspect --num-layers 2 => --num-layers is not used without --schedule
inspect --dataset {data}.bin => remove the suffix .bin
inspect --dataset {data} --verify --hash => --verify is not used without --checkpoint|--hash is not used without --checkpoint
inspect --checkpoint {work}/absent => contains no checkpoint
inspect --checkpoint {saved} --ckpt-step 4 => intact checkpoint is '|iter_0000001
inspect --checkpoint {saved}/iter_0000001 --ckpt-step 4 => specify two different checkpoints
inspect --checkpoint {saved} --num-layers 3 => --num-layers is not used without --schedule
inspect --schedule => The model needs --num-layers|--schedule needs --micro-batch-size
inspect {schedule} --hidden-size 3 => --hidden-size is not used in inspect --schedule
inspect {schedule} --tensor-model-parallel-size 2 => --tensor-model-parallel-size is not used in inspect --schedule
inspect {schedule} --pipeline-model-parallel-size 3 => 4 layers cannot be divided evenly among 3 pipeline ranks
bench => usage: isotron bench WHAT
bench speed => usage: isotron bench WHAT
bench train {bench} --bf16 --fp8-format e4m3 --te-precision-config-file {lines} => lines:1:
bench train {bench} --steps 0 => --steps must be from 1
bench train {bench} --data-path {data} => --data-path is not used in bench train
bench train --config {mine}/run.conf --json {mine}/run.conf => --json and --config are the same file
bench train {bench} --json {lines} --baseline {lines} => --json and --baseline are the same file
bench train {bench} --junit {lines} --against {lines} => --junit and --against are the same file
bench ops --json {work}/dangling --baseline {lines} --junit {work}/nothing => --json and --junit are the same file
bench ops --junit {lines} --baseline {lines} => --junit and --baseline are the same file
bench comm --ranks 2 --config {mine}/run.conf --json {work}/bert/../mine/run.conf => --json and --config are the same file
plan {conf} --json {work}/run.conf => --json and --config are the same file
plan {conf} --json {work}/absent/plan.json => cannot create a file in
plan {conf} --gpus-per-node 4 => --gpus-per-node is not used without --search: remove it
bench train {bench} --load {saved} => --load is not used in bench train
bench train {bench} --peak-tflops 0 => --peak-tflops must be above 0
bench ops --device gpu => --device expects one of cpu, cuda
bench ops --seconds -1 => --seconds must be from 0 to 1000000
bench ops --seconds 1e300 => --seconds must be from 0 to 1000000
bench train {bench} --seconds 1e300 => --seconds must be from 0 to 1000000
bench ops --filter ( => --filter (
bench rates --filter ( => --filter (
bench rates --dtype fp64 => --dtype
bench rates --seconds -1 => --seconds must be from 0 to 1000000
bench rates --filter ^absent$ => --filter ^absent$: no op has a matching name
bench rates --ranks 0 => --ranks must be from 1 to 256
bench rates --ranks 257 => --ranks must be from 1 to 256
bench rates --most-seconds 1e-9 => no measurement finished in --most-seconds 1e-09: raise it
bench rates --most-seconds -1 => --most-seconds must be from 0 to 1000000
bench rates --cpu-threads 5000 => --cpu-threads must be from 0 to 4096
plan {conf} --rates {lines} --json {lines} => --json and --rates are the same file
plan {conf} --rates {lines} => is not a rates file of version 1: measure one
plan {conf} --rates {work}/absent/rates.json => cannot
plan {conf} --links {lines} => --links is not used without --rates: remove it
plan {conf} --timeline {work}/a.svg => --timeline is not used without --rates: remove it
plan {conf} --rates {lines} --timeline {work}/a.png => does not end in .svg or .json: choose one
plan {conf} --rates {lines} --timeline {work}/absent/a.svg => cannot create a file in
plan {conf} --rates {lines} --timeline {lines} => --timeline and --rates are the same file
plan {conf} --rates {conf} --links {lines} --json {lines} => --json and --links are the same file
docs now => 'now' does not belong to any option
docs --num-layers 2 => '--num-layers' is not an option
version --now => '--now' is not an option
"""
if not pathlib.Path("/dev/nvidiactl").exists():
    ROWS += "generate {ask} --device cuda => --device cuda: this\npretrain {run} --device cuda => --device cuda: this\n"


def prepare():
    """Makes all files that the rows name."""
    data = corpus()
    for folder in ("deep", "bert", "pairs", "half", "released", "megatron/iter_0000003/mp_rank_00"):
        (WORK / folder).mkdir(parents=True)
    for name, content in {"empty": "", "lines": '{"text": "one two"}\n',
                          "megatron/latest_checkpointed_iteration.txt": "3",
                          "released/latest_checkpointed_iteration.txt": "release", "deep/config.json": "[" * 100000,
                          "deep/tokenizer.json": "[" * 100000, "bert/config.json": '{"model_type": "clip"}',
                          "good.list": "fp64\n", "typo.list": "# typo\ngpt2-tiny fp64\ngpt2-tyni fp64\n",
                          "precision.list": "gpt2-tiny fp65\n", "fp8.list": "bf16 --fp8-format hybrid\n",
                          "option.list": "fp64 --rank 2\n", "unread.list": "fp64 --save x\n"}.items():
        (WORK / name).write_text(content)
    (WORK / "latin1").write_bytes(b"a \xe9\n")
    for name in "ab":
        for kind in ("bin", "idx"):
            shutil.copy(WORK / f"corpus_text_document.{kind}", WORK / "pairs" / f"{name}.{kind}")
    shutil.copy(WORK / "pairs/a.bin", WORK / "half/a.bin")
    shutil.copy(WORK / "pairs/a.idx", WORK / "pairs/wide.idx")
    (WORK / "pairs/wide.bin").write_bytes(b"\xff" * (WORK / "pairs/a.bin").stat().st_size)
    shutil.copytree(ROOT / "tests/data/hf/qwen3-moe-windows", WORK / "hf")
    shutil.copytree(ROOT / "golden/gpt2-tiny", WORK / "mine")
    (WORK / "dangling").symlink_to("nothing")
    (WORK / "link").symlink_to("corpus_text_document.idx")
    isotron(*BASE, *data, "--exit-interval", 1, "--save", WORK / "saved")
    isotron(*BASE, *data, "--exit-interval", 1, "--save", WORK / "lean", "--no-save-optim")
    isotron("convert", "--from-hf", WORK / "hf", "--save", WORK / "imported")
    conf = f"--config {WORK}/run.conf"
    return {"work": WORK, "root": ROOT, "data": WORK / "corpus_text_document", "conf": conf, "saved": WORK / "saved",
            "hf": WORK / "hf", "lean": WORK / "lean",
            "check": f"{conf} --data-path {WORK}/corpus_text_document --split 100,0,0 --check-options",
            "run": f"{conf} --data-path {WORK}/corpus_text_document --split 100,0,0", "text": WORK / "corpus.txt",
            "empty": WORK / "empty", "ask": f"--load {WORK}/saved --prompt hi", "case": ROOT / "golden/gpt2-tiny",
            "mine": WORK / "mine", "import": f"--from-hf {WORK}/hf --save {WORK}/x",
            "export": f"--load {WORK}/saved --to-hf {WORK}/x", "lines": WORK / "lines",
            "bytes": "--tokenizer-type ByteLevelTokenizer", "tokens": f"--input {WORK}/lines --output-prefix {WORK}/p",
            "qwen": f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {ROOT}/tests/data/tokenizer/qwen2.json",
            "schedule": "--schedule --num-layers 4 --micro-batch-size 1 --global-batch-size 4",
            "bench": f"--config {ROOT}/golden/gpt2-tiny/run.conf --warmup 1 --no-alone"}


def files():
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in WORK.rglob("*")}


def check_pipes(names):
    """A file of a checkpoint, a dataset, a tokenizer or a golden case must be a regular file. The program refuses a
    FIFO or a device in its place, and does not wait for it. Other pipes that the user names are read."""
    data, sources = ROOT / "tests/data", WORK / "sources"
    shutil.copytree(data / "hf/qwen3-moe-windows", sources / "hf")
    shutil.copytree(ROOT / "golden/gpt2-tiny", sources / "case")
    shutil.copytree(names["saved"], sources / "saved")
    shutil.copytree(data / "tokenizer/gpt2", sources / "bpe")
    shutil.copytree(WORK / "pairs", sources / "pairs")
    for name, made in {"json": ["qwen2.json", "tokenizer.json"], "spm": ["unigram.model", "tokenizer.model"],
                       "tiktoken": ["gpt2.tiktoken"] * 2}.items():
        (sources / name).mkdir()
        shutil.copy(data / "tokenizer" / made[0], sources / name / made[1])
    (sources / "json/tokenizer_config.json").write_text("{}")
    (sources / "json/special_tokens_map.json").write_text("{}")
    (sources / "json/chat_template.jinja").write_text("x")
    (sources / "hf/generation_config.json").write_text("{}")
    (sources / "messages").write_text('[{"role": "user", "content": "a"}]')
    hf = "tokenize --tokenizer-type HuggingFaceTokenizer --tokenizer-model {0}"
    commands = {
        "saved": "generate --load {0} --prompt a --tokens-to-generate 1",
        "hf": "convert --from-hf {0} --save {work}/to", "case": "parity {0}", **dict.fromkeys(["json", "bpe", "spm"], f"{hf} --messages {{work}}/sources/messages"),
        "tiktoken": "tokenize --tokenizer-type TikTokenizer --tokenizer-model {0}/gpt2.tiktoken --input {lines}",
        "pairs": "merge --input {0} --output-prefix {work}/m"}
    unread = {sources / "hf/reference.safetensors", sources / "case/provenance.json"}
    count = 0
    for name, command in commands.items():
        for path in sorted({path for path in (sources / name).rglob("*") if path.is_file()} - unread):
            content = path.read_bytes()
            for kind in "FIFO", "device":
                path.unlink()
                os.mkfifo(path) if kind == "FIFO" else path.symlink_to("/dev/null")
                said = isotron(*command.format(sources / name, **names).split(), expect=2)
                assert f"'{path}' is a {kind}" in said, (path, kind, said)
                count += 1
            path.unlink()
            path.write_bytes(content)
    print(f"{count} pipes and devices are refused")
    for words in (f"plan --config {WORK}/run.conf",
                  f"{hf} --messages {sources}/messages".format(sources / "json", **names)):
        *words, path = words.split()
        piped = ["bash", "-c", '"${@:2}" <(cat "$1")', "", path, PROGRAM, *words]
        assert subprocess.run(piped, capture_output=True, text=True, check=True).stdout == isotron(*words, path)


def check_rows(names):
    before, count = files(), 0
    for row in ROWS.strip().splitlines():
        command, parts = row.split(" => ")
        said, at = isotron(*command.format(**names).split(), expect=2), 0
        for part in parts.replace("{work}", str(WORK)).split("|"):
            assert part in said[at:], f"'{part}' is missing or not in order in the message of: {command}\n{said}"
            at = said.index(part, at)
        after = files()
        changed = [str(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        assert not changed, f"{command} changed {changed}"
        count += 1
    assert count >= 100
    print(f"{count} wrong command lines are refused")


def check_options(names):
    """--check-options prints the banner of a run, but changes no files and makes no folder or index."""
    before, pair = files(), "{work}/pairs/a".format(**names)
    for words in ("{conf} --data-path 3 {data} 1 {work}/pairs/a --split 80,20,0 --eval-iters 1 --data-cache-path "
                  "{work}/new/cache",
                  "{conf} --train-data-path {work}/pairs/a --valid-data-path {data} --eval-iters 1 --load {lean} "
                  "--no-load-optim",
                  "{conf} --mock-data --ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
                  "{run} --load {saved} --save {saved} --log-jsonl {work}/log --tensorboard-dir {work}/tb/x"):
        said = isotron("pretrain", *words.format(**names).split(), "--check-options", "--wandb-project", "x",
                       "--use-mcore-models")
        for part in ("options are valid, 2 have no effect", "model:      gpt, 2 layers", "number of parameters: 76400",
                     "layout:     ", "memory:     rank ", "total ", "training:   ",
                     "all files can be opened and match each other"):
            assert part in said, (words, part, said)
        assert files() == before, (words, set(files()) ^ set(before))


def check_full_output(names):
    """If standard output cannot be written, every command fails."""
    for command in ("help", "version", "docs", "inspect --checkpoint {saved}", "plan {run}",
                    "generate {ask} --tokens-to-generate 1", "compare {saved} {saved}",
                    "bench ops --filter ^add$ --dtype fp32 --seconds 1e-9"):
        for stdout in ("/dev/full", None):
            words = ["bash", "-c", 'exec "$@" >&-', "_"] if stdout is None else []
            with open(stdout or os.devnull, "w") as out:
                done = subprocess.run([*words, PROGRAM, *command.format(**names).split()], stdout=out,
                                      stderr=subprocess.PIPE, text=True)
            assert done.returncode == 3, (command, stdout, done)
            assert "part of the output could not be written" in done.stderr, (command, stdout, done)


def check_shared_file():
    """Options of other commands in a file are skipped. pretrain prints notes about Megatron-LM's options that have no
    effect."""
    (WORK / "shared.conf").write_text(CONF + "temperature = 0\ntokens-to-generate = 2\nrotary-base = 5\nwandb-project "
                                      "= x\n")
    isotron("generate", "--config", WORK / "shared.conf", "--load", WORK / "saved", "--prompt", "hi",
            "--rotary-base", 5, expect=2)
    (WORK / "shared.conf").write_text("temperature = 0\ntokens-to-generate = 2\nlr = 3\nsave-interval = "
                                      "2\nwandb-project = x\n")
    said = isotron("generate", "--config", WORK / "shared.conf", "--load", WORK / "saved", "--prompt", "hi")
    assert "hi" in said and "wandb" not in said, said
    said = isotron("generate", "--load", WORK / "saved", "--prompt", "hi", "--tokens-to-generate", 2,
                   "--inference-rng-tracker", "--dist-ckpt-strictness", "log_unexpected", "--cache-mla-latents")
    assert "--inference-rng-tracker has no effect" in said and "--dist-ckpt-strictness has no effect" in said, said
    assert "--cache-mla-latents has no effect without --multi-latent-attention" in said, said
    # if the file cannot be read, no other errors are reported
    assert isotron("pretrain", "--config", WORK / "absent.conf", "--nonsense", expect=2).count("\n") == 1


def check_training_words(names):
    """Like Megatron-LM's inference scripts, generate accepts the options of the training command; it prints notes about
    those that have no effect."""
    ask = "generate {ask} --tokens-to-generate 1 --temperature 0 --wandb-project x".format(**names).split()
    options = dict(line.split(" = ") for line in CONF.strip().splitlines())
    more = ["--data-path", names["data"], "--split", "100,0,0", "--lane", "fp32", "--loss-scale", "2",
            "--no-save-optim", "--exit-signal-handler=false"]
    words = [f"--{name}{'' if value == 'true' else '=' + value}" for name, value in options.items()]
    said = isotron(*ask, *words, *more).splitlines()
    assert [line for line in said if " effect" in line] == [
        "note: --wandb-project has no effect: Isotron does not send logs to a server. Use --tensorboard-dir or "
        "--log-jsonl.",
        "note: --hidden-dropout, --attention-dropout, --micro-batch-size, --global-batch-size, --lr, "
        "--lr-warmup-iters, --lr-decay-style, --train-iters"
        " and 8 more have no effect in generate."], said
    assert said[0] == isotron(*ask).splitlines()[0], said


def check_help():
    for command in re.findall(r"^  ([\w-]+) ", isotron("--help"), re.M):
        said = isotron("help", command)
        assert all(len(line) <= 100 for line in said.splitlines()), said
        assert said == isotron(command, "--help") and f"\n\nexample: isotron {command}" in said, said
    assert "--lr " not in isotron("generate", "--help") and "--prompt " in isotron("generate", "--help", "PROMPT")
    found = isotron("help", "pretrain", "warm-up")
    assert "--lr-warmup-fraction" in found and "--hidden-size" not in found and "usage" not in found, found
    assert isotron("help", "bench", "train") == isotron("bench", "train", "--help")
    assert isotron("pretrain", "--help", "--warm_up") == found == isotron("pretrain", "--help", "WARM UP")
    assert "No option has 'xyzzy'" in isotron("merge", "--help", "xyzzy")


def check_tokenizer_of_checkpoint():
    """A checkpoint stores the absolute path of its tokenizer. If the tokenizer has moved, the message names it and the
    checkpoint. A path may contain any character. An import whose tokenizer cannot be read reports that it stores
    none."""
    folder = WORK / "odd \n \"name\""
    shutil.copytree(WORK / "hf", folder)
    made = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    words = [str(pathlib.Path(PROGRAM).resolve()), "convert", "--from-hf", ".", "--save", WORK / "relative"]
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "note" not in done.stderr, done.stderr
    isotron("generate", "--load", WORK / "relative", "--prompt", "a", "--tokens-to-generate", 0)
    (folder / "tokenizer.json").write_text("{}")
    said = isotron("generate", "--load", WORK / "relative", "--prompt", "a", expect=2)
    assert "the checkpoint's tokenizer cannot be opened: " in said, said
    assert "set --tokenizer-type with its files" in said, said
    assert "note: the checkpoint stores no tokenizer: " in isotron("convert", "--from-hf", folder,
                                                                   "--save", WORK / "without")
    assert "set --tokenizer-type GPT2BPETokenizer" in isotron("generate", "--load", WORK / "without",
                                                              "--prompt", "a", expect=2)


def check_overwrite():
    words = "--input {0}/lines --output-prefix {0}/again --tokenizer-type ByteLevelTokenizer".format(WORK).split()
    assert "1 document, 1 sequence, 7 tokens" in isotron("preprocess", *words)
    isotron("preprocess", *words, expect=2)
    isotron("preprocess", *words, "--append-eod", "--overwrite")
    assert "8 tokens" in isotron("inspect", "--dataset", WORK / "again_text_document")
    isotron("merge", "--input", WORK / "pairs", "--output-prefix", WORK / "again_text_document", "--overwrite")
    assert "8 tokens" not in isotron("inspect", "--dataset", WORK / "again_text_document")


def check_interrupt():
    """A signal ends preprocess immediately, even while it waits for input, and no files remain."""
    pipe, prefix = WORK / "pipe", WORK / "stopped"
    os.mkfifo(pipe)
    words = ["preprocess", "--input", pipe, "--output-prefix", prefix, *TOKENIZER]
    run = subprocess.Popen([PROGRAM, *map(str, words)], stderr=subprocess.PIPE, text=True)
    with open(pipe, "w") as writer:
        writer.write('{"text": "one"}\n')
        writer.flush()
        until = time.time() + 20
        while not list(WORK.glob("stopped*.tmp.*")) and time.time() < until:
            time.sleep(0.01)
        assert list(WORK.glob("stopped*.tmp.*")), "no unfinished file appears"
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=20)[1]
    assert run.returncode == -signal.SIGINT and "the unfinished files are removed" in said, (run.returncode, said)
    assert not list(WORK.glob("stopped*")), list(WORK.glob("stopped*"))


names = prepare()
check_rows(names)
check_options(names)
check_full_output(names)
check_shared_file()
check_training_words(names)
check_help()
check_tokenizer_of_checkpoint()
check_overwrite()
check_pipes(names)
check_interrupt()
