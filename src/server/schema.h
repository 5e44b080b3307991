/* Builds a grammar for text that a JSON Schema describes (json-schema.org, draft 2020-12). All text that
 * matches the grammar is valid, but not all valid text matches the grammar. An object contains its properties
 * in the schema's order, and no other properties. grammar_builder.h specifies numbers and white space.
 * Supported keywords:
 *
 *   type, enum, const, anyOf, $ref to "#" or a definition in $defs or definitions;
 *   properties, required, additionalProperties; items, minItems, maxItems;
 *   title, description, default, examples, deprecated, $comment, $schema, $id, which do not affect the text.
 *
 * A schema with any other keyword is refused, because ignoring the keyword could make the text invalid. */
#pragma once

#include "chat/tools.h"
#include "server/grammar_builder.h"
#include "server/refusal.h"

/* Sets *out to the first node of text that matches the schema and continues at `next`. `field` is the body
 * field that contains the schema; a refusal names this field. */
Refusal schema_build(GrammarBuilder *, const json_t *schema, const char *field, int32_t next, int32_t *out);

/* How a model writes arguments between tags, and two rules: any text followed by a tag, and an optional newline
 * followed by that tag. */
typedef struct SchemaTags {
    const ToolTags *tags;
    const Tokenizer *tokenizer;
    int32_t text, last;
} SchemaTags;
/* Does the same as schema_build for arguments between tags. `schema` is the schema of a function's parameters. A string
 * can be any text without the tag after it. */
Refusal schema_build_tagged(GrammarBuilder *, const json_t *schema, const SchemaTags *, const char *field,
                            int32_t next, int32_t *out);
/* Refuses a name that cannot be written between tags. */
Refusal schema_check_name(const char *field, const char *name);
