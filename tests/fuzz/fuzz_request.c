/* Bodies of HTTP requests. The input is the number of an endpoint and a body. An accepted body yields prompts with
 * tokens of the vocabulary that fit into the context; a refused one yields an error object. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "server/answer.h"
#include "server/constraint.h"

enum { CONTEXT = 200, CHOICES = 64, ENDPOINTS = ENDPOINT_WEIGHTS + 1 };

static const char CONFIG[] =
    "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"chat_template\": \"{% for t in tools or [] %}"
    "{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}{% endfor %}{% endfor "
    "%}\"}";

static const Served *served(void) {
    static const int64_t ENDS[] = {2};
    static Served s;
    static Tokenizer *tokenizer;
    static Chat *chat;
    Str json = {0};
    if (tokenizer) return &s;
    CHECK(fuzz_ok(file_read("tests/data/tokenizer/metaspace.json", &json)), "there is no tokenizer");
    char *path = fuzz_file("tokenizer.json", json.s, json.len),
         *config = fuzz_file("tokenizer_config.json", CONFIG, strlen(CONFIG));
    TokenizerConfig options = TOKENIZER_CONFIG_DEFAULT;
    options.type = "HuggingFaceTokenizer", options.model = path;
    CHECK(fuzz_ok(tokenizer_open(&options, &tokenizer)) && fuzz_ok(chat_open(path, tokenizer, &chat)),
          "the tokenizer cannot be opened");
    s = (Served){.name = "m",
                 .tokenizer = tokenizer,
                 .chat = chat,
                 .ends = ENDS,
                 .n_ends = 1,
                 .vocab = tokenizer_vocab_size(tokenizer),
                 .context = CONTEXT,
                 .choices = CHOICES};
    *strrchr(path, '/') = '\0';
    file_remove_tree(path);
    free(path), free(config), str_free(&json);
    return &s;
}

static void check_refusal(const Refusal *r) {
    json_t *json = refusal_json(r);
    const char *message = json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    CHECK(r->status >= 400 && r->status < 500 && message && strchr(message, ' '),
          "the refusal %d has no sentence: %s", r->status, message ? message : "");
    json_decref(json);
}

/* Generates text by a grammar. Text that may end is JSON, or contains a call. */
static void check_grammar(const Ask *ask) {
    enum { LENGTH = 24 };
    static Vocabulary *vocabulary;
    if (!ask->grammar) return;
    if (!vocabulary) vocabulary = constraint_vocabulary(served()->tokenizer);
    GrammarReader *reader = grammar_new(ask->grammar, ask->n_grammar, vocabulary);
    int32_t tokens[LENGTH];
    Str text = {0};
    for (int64_t n = 0; n < LENGTH; n++) {
        bool complete;
        const bool *next = grammar_next(reader, tokens, n, n / 2, &complete);
        if (!next) break;
        int64_t id = (int64_t)(hash64(&n, sizeof n, (uint64_t)ask->n_grammar) % (uint64_t)vocabulary->size),
                left = vocabulary->size;
        json_t *json =
            complete && !ask->tools ? json_loadb(text.s, text.len, JSON_DECODE_ANY, NULL) : json_null();
        CHECK(json, "%s is not JSON", text.s);
        json_decref(json);
        while (left && !next[id]) id = (id + 1) % vocabulary->size, left--;
        if (!left) break;
        tokens[n] = (int32_t)id;
        str_add(&text, vocabulary->text[id].bytes, (size_t)vocabulary->text[id].n);
    }
    str_free(&text);
    grammar_free(reader);
}

static void check_ask(const Ask *ask) {
    check_grammar(ask);
    CHECK(ask->n_prompts * ask->best_of <= CHOICES && ask->n >= 1 && ask->n <= ask->best_of, "%lld choices",
          (long long)(ask->n_prompts * ask->best_of));
    const Sampling *s = &ask->sampling;
    for (int64_t i = 0; i < s->n_allowed; i++)
        CHECK(s->allowed[i] >= 0 && s->allowed[i] < served()->vocab, "the allowed token %d", s->allowed[i]);
    for (int64_t at = 0; at < s->n_bad; at += 1 + s->bad[at]) {
        CHECK(s->bad[at] > 0 && s->bad[at] < s->n_bad - at, "a bad word of %d tokens", s->bad[at]);
        for (int64_t i = 1; i <= s->bad[at]; i++)
            CHECK(s->bad[at + i] >= 0 && s->bad[at + i] < served()->vocab, "the bad token %d",
                  s->bad[at + i]);
    }
    for (const TokenList *p = ask->prompts; p < ask->prompts + ask->n_prompts; p++) {
        CHECK(p->n >= 1 && (int64_t)p->n + ask_max_tokens(served(), ask, (int64_t)p->n) <= CONTEXT,
              "a prompt of %zu", p->n);
        for (size_t i = 0; i < p->n; i++)
            CHECK(p->at[i] >= 0 && p->at[i] < served()->vocab, "the token %d", p->at[i]);
    }
}

/* An answer whose choices have no events yet is valid JSON in each part. */
static void check_answer(Ask *ask) {
    const bool streamed = ask->stream;
    Latencies latencies = {0};
    Str text = {0};
    int64_t n;
    Answer *answer = answer_new(served(), ask, &latencies);
    free(answer_requests(answer, &n));
    if (streamed)
        answer_stream(answer, &text);
    else
        json_decref(answer_json(answer));
    CHECK(utf8_valid(text.s ? text.s : "", text.len), "a stream is not UTF-8");
    str_free(&text);
    answer_free(answer);
}

/* Finds calls in the first message, as if a model had written it. */
static void check_calls(const Ask *ask, const char *text, size_t n) {
    Str whole = {0}, parts = {0};
    ToolText a = {.format = ask->tools, .tools = ask->functions, .single = ask->single}, b = a;
    tool_text_push(&a, text, n, true, &whole);
    for (size_t i = 0; i < n; i++) tool_text_push(&b, text + i, 1, false, &parts);
    tool_text_push(&b, NULL, 0, true, &parts);
    CHECK(whole.len == parts.len && !memcmp(whole.s ? whole.s : "", parts.s ? parts.s : "", whole.len) &&
              !a.calls == !b.calls && (!a.calls || json_equal(a.calls, b.calls)),
          "the calls of a text depend on its parts");
    tool_text_free(&a), tool_text_free(&b);
    str_free(&whole), str_free(&parts);
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    if (!n) return false;
    const Endpoint endpoint = (Endpoint)(bytes[0] % ENDPOINTS);
    const char *body = (const char *)bytes + 1;
    json_t *json = NULL;
    Ask ask = {0};
    TokenList *lists = NULL, ids = {0};
    int64_t count = 0;
    Refusal refusal = request_parse(served(), endpoint, body, n - 1, &json);
    if (!refusal.status && endpoint <= ENDPOINT_MEGATRON)
        refusal = request_ask(served(), endpoint, json, &ask);
    if (!refusal.status && endpoint == ENDPOINT_TOKENIZE)
        refusal = request_prompts(served(), json, &lists, &count);
    if (!refusal.status && endpoint == ENDPOINT_DETOKENIZE)
        refusal = request_ids(served(), "tokens", json_object_get(json, "tokens"), &ids);
    if (refusal.status)
        check_refusal(&refusal);
    else if (endpoint <= ENDPOINT_MEGATRON) {
        check_ask(&ask);
        const json_t *text = json_object_get(json_array_get(json_object_get(json, "messages"), 0), "content");
        if (ask.tools && json_is_string(text))
            check_calls(&ask, json_string_value(text), json_string_length(text));
        check_answer(&ask);
    }
    for (int64_t i = 0; i < count; i++) free(lists[i].at);
    free(lists), free(ids.at);
    ask_free(&ask);
    json_decref(json);
    return !refusal.status;
}

static const struct {
    Endpoint endpoint;
    const char *body;
} SEEDS[] = {
    {ENDPOINT_COMPLETIONS,
     "{\"prompt\": \"The loss\", \"max_tokens\": 9, \"temperature\": 0.5, \"top_p\": 0.9, \"top_k\": 5, "
     "\"min_p\": 0.1, \"n\": 2, \"best_of\": 3, \"seed\": -7, \"stop\": [\"a\", \"\\u00e9\"], "
     "\"logprobs\": 3, \"echo\": true, \"logit_bias\": {\"3\": -1.5, \"4\": 100}}"},
    {ENDPOINT_COMPLETIONS,
     "{\"prompt\": \"a\", \"presence_penalty\": 0.5, \"frequency_penalty\": -1, \"repetition_penalty\": "
     "1.1, \"min_tokens\": 2, \"stop_token_ids\": [5], \"allowed_token_ids\": [5, 7, 9], \"bad_words\": "
     "[\"loss\", \" the\"], \"prompt_logprobs\": 2, \"include_stop_str_in_output\": true}"},
    {ENDPOINT_COMPLETIONS,
     "{\"prompt\": [\"a\", [1, 2, 3]], \"stream\": true, \"stream_options\": {\"include_usage\": true, "
     "\"continuous_usage_stats\": true}, \"return_token_ids\": true, \"user\": \"u\"}"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\": [4.0, 5], \"truncate_prompt_tokens\": 1, \"max_tokens\": 0, "
                           "\"echo\": true, \"cache_salt\": \"s\", \"suffix\": \"\", \"model\": \"m\"}"},
    {ENDPOINT_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"\\u0000a\"}]}, "
     "{\"role\": \"assistant\", \"content\": \"b\"}], \"continue_final_message\": true, \"logprobs\": "
     "true, \"top_logprobs\": 2, \"max_completion_tokens\": 7, \"skip_special_tokens\": false}"},
    {ENDPOINT_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": \"b <tool_call>{\\\"name\\\": \\\"f\\\", "
     "\\\"arguments\\\": {\\\"a\\\": \\\"</tool_call>\\\"}}</tool_call>\\n<tool_call>{\\\"name\\\": "
     "\\\"g\\\"}</tool_call>\"}], \"chat_template\": \"{{ 1 }}<tool_call>\", \"tools\": [{\"type\": "
     "\"function\", \"function\": {\"name\": \"f\"}}], \"stream\": true}"},
    {ENDPOINT_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": \"a[TOOL_CALLS]f[ARGS]{\\\"a\\\": "
     "1}[TOOL_CALLS][{\\\"name\\\": \\\"g\\\"}]\"}], \"chat_template\": \"{{ 1 }}[TOOL_CALLS]\", "
     "\"tools\": "
     "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"tool_choice\": \"auto\"}"},
    {ENDPOINT_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"{\\\"name\\\": \\\"f\\\", "
                    "\\\"parameters\\\": {\\\"a\\\": 1}}; {\\\"name\\\": \\\"g\\\"}\"}], "
                    "\"chat_template\": \"{{ x }}ipython\", \"tools\": [{\"type\": \"function\", "
                    "\"function\": {\"name\": \"f\"}}], \"chat_template_kwargs\": {\"x\": 1}}"},
    {ENDPOINT_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
     "\"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": "
     "\"{\\\"a\\\": \\\"\\\\u0000\\\"}\"}}]}, {\"role\": \"tool\", \"content\": \"3\"}], \"tools\": "
     "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"max_tokens\": 3}"},
    {ENDPOINT_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [{\"type\": \"function\", "
     "\"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": "
     "{\"type\": \"number\"}}, \"required\": [\"a\"]}}}], \"tool_choice\": \"required\"}"},
    {ENDPOINT_COMPLETIONS,
     "{\"prompt\": \"a\", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
     "{\"anyOf\": [{\"type\": [\"integer\", \"string\"]}, {\"enum\": [1.5, \"\\u00e9\", null]}, "
     "{\"items\": "
     "{\"$ref\": \"#\"}, \"minItems\": 1, \"maxItems\": 3}, {\"additionalProperties\": {\"const\": "
     "true}}]}}}}"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\": \"a\", \"response_format\": {\"type\": \"json_object\"}}"},
    {ENDPOINT_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": "
     "\"a<tool_call>\\n<function=f>\\n<parameter=a>\\n-7\\n</parameter>\\n<parameter=b>\\nx\\n</"
     "parameter>\\n</function>\\n</tool_call>\\n<tool_call>\\n<function=g>\\n</function>\\n</tool_call>\"}], "
     "\"chat_template\": \"{{ reasoning_effort }}<parameter=\", \"reasoning_effort\": \"low\", \"tools\": "
     "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": "
     "{\"type\": \"integer\"}, \"b\": {\"anyOf\": [{\"type\": \"string\"}, {\"$ref\": \"#/$defs/d\"}]}, "
     "\"c\": {\"enum\": [\"x\", 1]}}, \"required\": [\"b\"], \"$defs\": {\"d\": {\"type\": [\"boolean\", "
     "\"null\"]}}}}}], \"parallel_tool_calls\": false}"},
    {ENDPOINT_CHAT,
     "{\"messages\": [{\"role\": \"user\", \"content\": "
     "\"a<tool_call>\\n<function=f>\\n<parameter=a>\\n-7\\n</parameter>\\n<parameter=b>\\nx\\n</"
     "parameter>\\n</function>\\n</tool_call>\\n<tool_call>\\n<function=g>\\n</function>\\n</tool_call>\"}], "
     "\"chat_template\": \"{{ reasoning_effort }}<parameter=\", \"reasoning_effort\": \"low\", \"tools\": "
     "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": "
     "{\"type\": \"integer\"}, \"b\": {\"anyOf\": [{\"type\": \"string\"}, {\"$ref\": \"#/$defs/d\"}]}, "
     "\"c\": {\"enum\": [\"x\", 1]}}, \"required\": [\"b\"], \"$defs\": {\"d\": {\"type\": [\"boolean\", "
     "\"null\"]}}}}}], \"tool_choice\": \"required\"}"},
    {ENDPOINT_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": "
                    "\"<tool_call>f\\n<arg_key>a</arg_key>\\n<arg_value>True</arg_value>\\n</"
                    "tool_call><tool_call>g</tool_call>\"}], \"chat_template\": \"{{ 1 }}<arg_key>\", "
                    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                    "{\"properties\": {\"a\": {\"type\": \"boolean\"}}}}}]}"},
    {ENDPOINT_MEGATRON, "{\"prompts\": [\"The\", \"\\u0000\"], \"tokens_to_generate\": 6, \"top_k\": 1, "
                        "\"logprobs\": true, \"add_BOS\": true, \"random_seed\": 3, \"stop_token\": 4}"},
    {ENDPOINT_TOKENIZE, "{\"prompt\": \"The loss\", \"add_special_tokens\": true}"},
    {ENDPOINT_TOKENIZE,
     "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"add_generation_prompt\": false}"},
    {ENDPOINT_DETOKENIZE, "{\"tokens\": [1, 2, 3]}"},
    {ENDPOINT_WEIGHTS, "{\"model_path\": \"a/iter_0000002\", \"flush_cache\": true, \"token_step\": 3}"},
};

void fuzz_seeds(Corpus *c) {
    for (size_t i = 0; i < sizeof SEEDS / sizeof *SEEDS; i++) {
        Str seed = {0};
        str_add(&seed, &(char){(char)SEEDS[i].endpoint}, 1);
        str_puts(&seed, SEEDS[i].body);
        CHECK(fuzz_one((const uint8_t *)seed.s, seed.len), "a seed is refused: %s", SEEDS[i].body);
        corpus_add(c, seed.s, seed.len);
        str_free(&seed);
    }
}
