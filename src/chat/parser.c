/* Parses statements, and the text between them. */
#include <string.h>

#include "chat/node.h"

typedef const char *const *Words;

#define SKIP_OP(p, text)   parser_skip(p, TOKEN_OPERATOR, text)
#define SKIP_WORD(p, text) parser_skip(p, TOKEN_NAME, text)

static void body(Parser *p, Words ends, TreeNodes *out);

/* Reads a body and the word that ends it (one of `ends`). */
static void body_to(Parser *p, Words ends, TreeNodes *out) {
    parser_expect(p, TOKEN_BLOCK_END, NULL);
    body(p, ends, out);
}

/* Reads a body up to `word`, and skips the word. */
static void body_to_word(Parser *p, const char *word, TreeNodes *out) {
    body_to(p, (const char *const[]){word, NULL}, out);
    SKIP_WORD(p, word);
}

/* Reads an assignment's target: a name, comma-separated names, or an attribute of a namespace. */
static TreeNode *target_part(Parser *p, bool with_namespace) {
    if (SKIP_OP(p, "(")) {
        TreeNode *tuple = parser_node(p, NODE_TUPLE);
        while (!SKIP_OP(p, ")") && !p->err.code && parser_enter(p)) {
            parser_push(p, &tuple->list, target_part(p, with_namespace));
            if (!parser_is(p, TOKEN_OPERATOR, ")")) parser_expect(p, TOKEN_OPERATOR, ",");
            parser_leave(p);
        }
        return tuple;
    }
    TreeNode *node = parser_node(p, NODE_NAME);
    if (p->at->type != TOKEN_NAME)
        parser_fail_at(p, "a name to assign to");
    else
        node = parser_primary(p);
    if (node->type == NODE_CONST) parser_fail(p, "a constant cannot be assigned; use another name");
    if (!with_namespace || !SKIP_OP(p, ".")) return node;
    TreeNode *attribute = parser_node(p, NODE_ATTR);
    attribute->a = node, attribute->value = value_view(p->at->s, p->at->n);
    parser_expect(p, TOKEN_NAME, NULL);
    return attribute;
}

static TreeNode *target(Parser *p, bool with_namespace) {
    TreeNode *first = target_part(p, with_namespace);
    if (!parser_is(p, TOKEN_OPERATOR, ",")) return first;
    TreeNode *tuple = parser_node(p, NODE_TUPLE);
    parser_push(p, &tuple->list, first);
    while (SKIP_OP(p, ",") && !parser_is(p, TOKEN_NAME, "in") && !parser_is(p, TOKEN_OPERATOR, "="))
        parser_push(p, &tuple->list, target_part(p, with_namespace));
    return tuple;
}

/* Reads a body in which `break` and `continue` do not affect loops outside the body. */
static void captured(Parser *p, const char *end, TreeNodes *out) {
    const int loops = p->loops;
    p->loops = 0;
    body_to_word(p, end, out);
    p->loops = loops;
}

static void parse_if(Parser *p, TreeNode *node) {
    static const char *const ENDS[] = {"elif", "else", "endif", NULL};
    node->a = parser_expression(p);
    body_to(p, ENDS, &node->list);
    if (parser_is(p, TOKEN_NAME, "elif")) {
        TreeNode *inner = parser_node(p, NODE_IF);
        p->at++;
        if (!parser_enter(p)) return;
        parse_if(p, inner);
        parser_leave(p);
        parser_push(p, &node->other, inner);
    } else if (SKIP_WORD(p, "else"))
        body_to_word(p, "endif", &node->other);
    else
        SKIP_WORD(p, "endif");
}

static void parse_for(Parser *p, TreeNode *node) {
    static const char *const ENDS[] = {"else", "endfor", NULL};
    node->a = target(p, false);
    parser_expect(p, TOKEN_NAME, "in");
    node->b = parser_tuple(p, parser_operand);
    if (SKIP_WORD(p, "if")) node->c = parser_expression(p);
    node->recursive = SKIP_WORD(p, "recursive");
    p->loops++;
    body_to(p, ENDS, &node->list);
    p->loops--;
    if (SKIP_WORD(p, "else"))
        body_to_word(p, "endfor", &node->other);
    else
        SKIP_WORD(p, "endfor");
}

static void parse_set(Parser *p, TreeNode *node) {
    node->a = target(p, true);
    if (SKIP_OP(p, "="))
        node->b = parser_tuple(p, parser_expression);
    else {
        node->type = NODE_SET_BLOCK;
        if (SKIP_OP(p, "|")) node->b = parser_filters(p);
        captured(p, "endset", &node->list);
    }
}

static void parse_params(Parser *p, TreeNodes *params) {
    parser_expect(p, TOKEN_OPERATOR, "(");
    while (!SKIP_OP(p, ")") && !p->err.code) {
        if (params->n) parser_expect(p, TOKEN_OPERATOR, ",");
        TreeNode *param = parser_node(p, NODE_KEYWORD);
        param->value = value_view(p->at->s, p->at->n);
        parser_expect(p, TOKEN_NAME, NULL);
        if (SKIP_OP(p, "="))
            param->a = parser_expression(p);
        else if (params->n && params->at[params->n - 1]->a)
            parser_fail(p, "a parameter without a default follows one with a default; reorder them");
        parser_push(p, params, param);
    }
}

/* Reads the body of a macro or call block, and records which special variables the body uses. */
static void parse_macro_body(Parser *p, TreeNode *node, const char *end) {
    const bool rest = p->uses_rest, names = p->uses_names, caller = p->uses_caller;
    p->uses_rest = p->uses_names = p->uses_caller = false;
    captured(p, end, &node->list);
    node->uses_rest = p->uses_rest, node->uses_names = p->uses_names, node->uses_caller = p->uses_caller;
    p->uses_rest |= rest, p->uses_names |= names, p->uses_caller |= caller;
}

static void parse_macro(Parser *p, TreeNode *node) {
    node->value = value_view(p->at->s, p->at->n);
    parser_expect(p, TOKEN_NAME, NULL);
    parse_params(p, &node->params);
    parse_macro_body(p, node, "endmacro");
}

static void parse_call(Parser *p, TreeNode *node) {
    if (parser_is(p, TOKEN_OPERATOR, "(")) parse_params(p, &node->params);
    node->value = value_view("caller", 6);
    node->a = parser_expression(p);
    if (node->a->type != NODE_CALL) parser_fail_at(p, "a call of a macro");
    parse_macro_body(p, node, "endcall");
}

static void parse_filter(Parser *p, TreeNode *node) {
    node->a = parser_filters(p);
    captured(p, "endfilter", &node->list);
}

static void parse_with(Parser *p, TreeNode *node) {
    while (p->at->type != TOKEN_BLOCK_END && !p->err.code) {
        if (node->params.n) parser_expect(p, TOKEN_OPERATOR, ",");
        TreeNode *set = parser_node(p, NODE_SET);
        set->a = target_part(p, false);
        parser_expect(p, TOKEN_OPERATOR, "=");
        set->b = parser_expression(p);
        parser_push(p, &node->params, set);
    }
    body_to_word(p, "endwith", &node->list);
}

static void parse_generation(Parser *p, TreeNode *node) { captured(p, "endgeneration", &node->list); }

static void parse_print(Parser *p, TreeNode *node) {
    while (p->at->type != TOKEN_BLOCK_END && !p->err.code) {
        if (node->list.n) parser_expect(p, TOKEN_OPERATOR, ",");
        parser_push(p, &node->list, parser_expression(p));
    }
}

static void parse_jump(Parser *p, TreeNode *node) {
    (void)node;
    if (!p->loops) parser_fail(p, "break or continue is not inside a loop; remove it");
}

static const struct Tag {
    const char *name;
    NodeType type;
    void (*parse)(Parser *, TreeNode *);
} TAGS[] = {
    {"if", NODE_IF, parse_if},
    {"for", NODE_FOR, parse_for},
    {"set", NODE_SET, parse_set},
    {"macro", NODE_MACRO, parse_macro},
    {"call", NODE_CALL_BLOCK, parse_call},
    {"filter", NODE_FILTER_BLOCK, parse_filter},
    {"with", NODE_SCOPE, parse_with},
    {"generation", NODE_SCOPE, parse_generation},
    {"print", NODE_PRINT, parse_print},
    {"break", NODE_BREAK, parse_jump},
    {"continue", NODE_CONTINUE, parse_jump},
};

static void statement(Parser *p, TreeNodes *out) {
    for (size_t i = 0; i < sizeof TAGS / sizeof *TAGS; i++)
        if (parser_is(p, TOKEN_NAME, TAGS[i].name)) {
            TreeNode *node = parser_node(p, TAGS[i].type);
            p->at++;
            TAGS[i].parse(p, node);
            parser_expect(p, TOKEN_BLOCK_END, NULL);
            parser_push(p, out, node);
            return;
        }
    parser_fail(p,
                "the tag %s is not known here; a chat template may use if, for, set, macro, call, filter, "
                "with, print, "
                "generation, break and continue",
                value_quote(value_view(p->at->s, p->at->n)).s);
}

static bool is_end(const Parser *p, Words ends) {
    for (; *ends; ends++)
        if (parser_is(p, TOKEN_NAME, *ends)) return true;
    return false;
}

static void missing_end(Parser *p, Words ends) {
    size_t n = 0;
    while (ends[n]) n++;
    if (n) parser_fail(p, "a block has no end; add {%% %s %%}", ends[n - 1]);
}

static void piece(Parser *p, TreeNodes *out) {
    const Token *t = p->at;
    if (t->type == TOKEN_DATA) {
        TreeNode *node = parser_node(p, NODE_DATA);
        node->value = value_view(t->s, t->n);
        p->at++;
        parser_push(p, out, node);
    } else if (parser_skip(p, TOKEN_PRINT_BEGIN, NULL)) {
        TreeNode *node = parser_node(p, NODE_PRINT);
        parser_push(p, &node->list, parser_tuple(p, parser_expression));
        parser_expect(p, TOKEN_PRINT_END, NULL);
        parser_push(p, out, node);
    } else
        parser_fail_at(p, "a tag or text");
}

/* Reads statements and text. Stops after the {% of a tag whose name is in `ends`. */
static void body(Parser *p, Words ends, TreeNodes *out) {
    if (!parser_enter(p)) return;
    while (p->at->type != TOKEN_END) {
        if (!parser_skip(p, TOKEN_BLOCK_BEGIN, NULL))
            piece(p, out);
        else if (is_end(p, ends))
            break;
        else
            statement(p, out);
    }
    if (p->at->type == TOKEN_END) missing_end(p, ends);
    parser_leave(p);
}

Err parser_run(const Token *tokens, Arena *arena, TreeNodes *out) {
    Parser p = {.at = tokens, .arena = arena};
    body(&p, (const char *const[]){NULL}, out);
    return p.err;
}
