/* This file and execute.c call each other: an expression can call a macro, whose body consists of statements. */
#include "chat/run.h"

#include <string.h>

static Value callable(Machine *m, const Builtin *b) {
    Callable *made = machine_take(m, sizeof *made);
    if (!made) return UNDEFINED;
    *made = (Callable){.builtin = b};
    return (Value){.type = VALUE_CALLABLE, .callable = made};
}

static Value variable(Machine *m, const Scope *scope, Value name) {
    for (; scope; scope = scope->up) {
        const Value *found = dict_get_text(m, &scope->vars, name.s, name.n);
        if (found) return *found;
    }
    const Value *found = dict_get_text(m, m->variables, name.s, name.n);
    if (found) return *found;
    const Builtin *function = builtin_find(CHAT_FUNCTIONS, name);
    return function ? callable(m, function) : value_undefined(VALUE_MISSING, name.s, name.n);
}

static Value evaluate_list(Machine *m, Scope *scope, const TreeNode *node) {
    Value made = value_list(m, node->type == NODE_TUPLE ? KIND_TUPLE : KIND_LIST);
    for (size_t i = 0; i < node->list.n && !m->err.code; i++)
        list_push(m, made.list, chat_evaluate(m, scope, node->list.at[i]));
    return made;
}

static Value evaluate_dict(Machine *m, Scope *scope, const TreeNode *node) {
    Value made = value_dict(m);
    for (size_t i = 0; i + 1 < node->list.n && !m->err.code; i += 2) {
        const Value key = chat_evaluate(m, scope, node->list.at[i]);
        dict_set(m, made.dict, key, chat_evaluate(m, scope, node->list.at[i + 1]));
    }
    return made;
}

/* ---- calls ---- */

static void add_names(Machine *m, Value from, Dict *names) {
    if (from.type != VALUE_DICT) value_fail_type(m, from, "** needs a dict");
    for (size_t i = 0; !m->err.code && i < from.dict->n; i++) {
        if (from.dict->at[i].key.type != VALUE_STRING)
            machine_fail(m, "** needs a dict whose keys are strings");
        if (dict_get(m, names, from.dict->at[i].key))
            machine_fail(m, "a keyword argument is given twice; remove one");
        dict_set(m, names, from.dict->at[i].key, from.dict->at[i].value);
    }
}

CallArgs chat_evaluate_args(Machine *m, Scope *scope, const TreeNodes *nodes, Value first) {
    Value at = value_list(m, KIND_LIST), names = value_dict(m);
    if (m->err.code) return (CallArgs){0};
    if (first.type != VALUE_MISSING) list_push(m, at.list, first);
    for (size_t i = 0; i < nodes->n && !m->err.code; i++) {
        const TreeNode *node = nodes->at[i];
        const bool plain = node->type != NODE_KEYWORD && node->type != NODE_STAR && node->type != NODE_STARS;
        const Value v = chat_evaluate(m, scope, plain ? node : node->a);
        const List *items = node->type == NODE_STAR ? value_items(m, v) : NULL;
        for (size_t k = 0; items && k < items->n && !m->err.code; k++) list_push(m, at.list, items->at[k]);
        if (node->type == NODE_STARS) add_names(m, v, names.dict);
        if (plain) list_push(m, at.list, v);
        if (node->type != NODE_KEYWORD) continue;
        if (dict_get(m, names.dict, node->value))
            machine_fail(m, "a keyword argument is given twice; remove one");
        dict_set(m, names.dict, node->value, v);
    }
    return (CallArgs){.at = at.list->at, .n = at.list->n, .names = names.dict};
}

static Value call(Machine *m, Value of, const CallArgs *a) {
    if (m->err.code) return UNDEFINED;
    if (of.type == VALUE_LOOP) {
        if (!of.loop->node->recursive || a->n != 1)
            machine_fail(m, "loop(...) needs one list, inside a loop that is marked 'recursive'");
        return m->err.code ? UNDEFINED : chat_execute_loop_again(m, of.loop, a->at[0]);
    }
    if (of.type == VALUE_CALLABLE)
        return of.callable->macro ? chat_execute_macro(m, of.callable, a)
                                  : builtin_call(m, "function", of.callable->builtin, a);
    if (of.type == VALUE_UNDEFINED) value_fail_undefined(m, of);
    machine_fail(m, "%s cannot be called; remove the brackets", value_type_name(of));
    return UNDEFINED;
}

static Value evaluate_call(Machine *m, Scope *scope, const TreeNode *node) {
    const Value of = chat_evaluate(m, scope, node->a);
    const Value self = of.type == VALUE_CALLABLE && !m->err.code ? of.callable->self : (Value){0};
    const CallArgs a = chat_evaluate_args(m, scope, &node->list, self);
    m->line = node->line;
    return call(m, of, &a);
}

Value chat_evaluate_filters(Machine *m, Scope *scope, const TreeNode *node, Value input) {
    if (!machine_enter(m)) return UNDEFINED;
    if (node->a)
        input = node->a->type == NODE_FILTER ? chat_evaluate_filters(m, scope, node->a, input)
                                             : chat_evaluate(m, scope, node->a);
    const CallArgs a = chat_evaluate_args(m, scope, &node->list, input);
    m->line = node->line;
    const Value made = m->err.code ? UNDEFINED : filter_apply(m, node->value, &a);
    machine_leave(m);
    return made;
}

static Value evaluate_test(Machine *m, Scope *scope, const TreeNode *node) {
    const CallArgs a = chat_evaluate_args(m, scope, &node->list, chat_evaluate(m, scope, node->a));
    m->line = node->line;
    return m->err.code ? UNDEFINED : value_bool(test_apply(m, node->value, &a));
}

/* ---- operators ---- */

static Value bound_of(Machine *m, Scope *scope, const TreeNode *node) {
    return node ? chat_evaluate(m, scope, node) : value_none();
}

static Value evaluate_item(Machine *m, Scope *scope, const TreeNode *node) {
    const Value of = chat_evaluate(m, scope, node->a);
    if (!node->b || node->b->type != NODE_SLICE) return access_item(m, of, chat_evaluate(m, scope, node->b));
    const TreeNode *slice = node->b;
    const Value from = bound_of(m, scope, slice->a), to = bound_of(m, scope, slice->b),
                step = bound_of(m, scope, slice->c);
    return access_slice(m, of, from, to, step);
}

static Value evaluate_concat(Machine *m, Scope *scope, const TreeNode *node) {
    Value made = value_view("", 0);
    for (size_t i = 0; i < node->list.n && !m->err.code; i++) {
        const Value v = chat_evaluate(m, scope, node->list.at[i]);
        if (!m->err.code) made = value_join(m, made, value_text(m, v));
    }
    return made;
}

static Value evaluate_compare(Machine *m, Scope *scope, const TreeNode *node) {
    Value left = chat_evaluate(m, scope, node->a);
    for (size_t i = 0; i < node->list.n && !m->err.code; i++) {
        const Value right = chat_evaluate(m, scope, node->list.at[i]->a);
        if (m->err.code || !operator_compare(m, node->list.at[i]->op, left, right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static Value evaluate_binary(Machine *m, Scope *scope, const TreeNode *node) {
    const Value left = chat_evaluate(m, scope, node->a), right = chat_evaluate(m, scope, node->b);
    m->line = node->line;
    return operator_binary(m, node->op, left, right);
}

static Value evaluate_logic(Machine *m, Scope *scope, const TreeNode *node) {
    const Value left = chat_evaluate(m, scope, node->a);
    if (m->err.code || value_true(left) == (node->type == NODE_OR)) return left;
    return chat_evaluate(m, scope, node->b);
}

/* Evaluates NODE_CHOOSE. In "a if b else c", `a` is the value and `b` is the condition. */
static Value evaluate_choice(Machine *m, Scope *scope, const TreeNode *node) {
    const bool chosen = value_true(chat_evaluate(m, scope, node->b));
    if (m->err.code) return UNDEFINED;
    return chosen ? chat_evaluate(m, scope, node->a) : node->c ? chat_evaluate(m, scope, node->c) : UNDEFINED;
}

static Value evaluate_node(Machine *m, Scope *scope, const TreeNode *node) {
    switch (node->type) {
    case NODE_CONST:
        return node->value;
    case NODE_NAME:
        return variable(m, scope, node->value);
    case NODE_LIST:
    case NODE_TUPLE:
        return evaluate_list(m, scope, node);
    case NODE_DICT:
        return evaluate_dict(m, scope, node);
    case NODE_ATTR:
        return access_attribute(m, chat_evaluate(m, scope, node->a), node->value);
    case NODE_ITEM:
        return evaluate_item(m, scope, node);
    case NODE_CALL:
        return evaluate_call(m, scope, node);
    case NODE_FILTER:
        return chat_evaluate_filters(m, scope, node, UNDEFINED);
    case NODE_TEST:
        return evaluate_test(m, scope, node);
    case NODE_NOT:
        return value_bool(!value_true(chat_evaluate(m, scope, node->a)));
    case NODE_NEGATIVE:
        return operator_negative(m, chat_evaluate(m, scope, node->a));
    case NODE_POSITIVE:
        return operator_binary(m, OP_ADD, value_int(0), chat_evaluate(m, scope, node->a));
    case NODE_AND:
    case NODE_OR:
        return evaluate_logic(m, scope, node);
    case NODE_BINARY:
        return evaluate_binary(m, scope, node);
    case NODE_CONCAT:
        return evaluate_concat(m, scope, node);
    case NODE_COMPARE:
        return evaluate_compare(m, scope, node);
    case NODE_CHOOSE:
        return evaluate_choice(m, scope, node);
    default:
        machine_fail(m, "a slice or a keyword is not an expression; correct the syntax");
        return UNDEFINED;
    }
}

Value chat_evaluate(Machine *m, Scope *scope, const TreeNode *node) {
    if (!machine_enter(m)) return UNDEFINED;
    m->line = node->line;
    const Value v = evaluate_node(m, scope, node);
    machine_leave(m);
    return m->err.code ? UNDEFINED : v;
}
