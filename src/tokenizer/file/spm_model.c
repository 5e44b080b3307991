#include "tokenizer/file/spm_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/file/protobuf.h"

void spm_model_free(SpmModel *m) {
    vocab_free(m->vocab);
    free(m->pieces);
    str_free(&m->bos_piece), str_free(&m->eos_piece), str_free(&m->pad_piece), str_free(&m->unk_surface);
    charsmap_free(m->normalizer.charsmap), charsmap_free(m->denormalizer.charsmap);
    str_free(&m->normalizer.bytes), str_free(&m->denormalizer.bytes);
}

static Err damaged(void) { return err_user("the file is damaged, or is not a SentencePiece model"); }

/* Fields whose type differs from the schema are skipped, as in Protocol Buffers. */
static Message message_of(const Field *f) { return (Message){f->bytes, f->n, false}; }

static Err read_piece(Message message, SpmModel *m) {
    const char *text = NULL;
    size_t n = 0;
    Piece piece = {PIECE_NORMAL, 0};
    for (Field f; message_next(&message, &f);) {
        if (f.number == 1 && f.type == WIRE_BYTES) text = f.bytes, n = f.n;
        if (f.number == 2 && f.type == WIRE_32) piece.score = field_float(&f);
        if (f.number == 3 && f.type == WIRE_VARINT) piece.type = (PieceType)f.value;
    }
    if (message.damaged) return damaged();
    const int32_t id = vocab_limit(m->vocab);
    if (!n || !utf8_valid(text, n)) return err_user("piece %d is empty or not UTF-8", id);
    if (piece.type < PIECE_NORMAL || piece.type > PIECE_BYTE || !isfinite(piece.score))
        return err_user("piece %d has an unknown type, or no finite score", id);
    Str spelled = {0};
    str_add(&spelled, text, n);
    Err e = vocab_add(m->vocab, spelled.s, n, id);
    str_free(&spelled);
    if (e.code) return e;
    if ((size_t)id == m->cap) m->pieces = mem_grow(m->pieces, m->cap = m->cap * 2 + 1024, sizeof *m->pieces);
    m->pieces[id] = piece;
    return ERR_OK;
}

static void set_text(Str *s, const Field *f) {
    str_clear(s);
    str_add(s, f->bytes, f->n);
}

static Err read_trainer(Message message, SpmModel *m) {
    for (Field f; message_next(&message, &f);) {
        if (f.type == WIRE_VARINT) {
            if (f.number == 3) m->kind = (SpmKind)f.value;
            if (f.number == 24) m->whitespace_as_suffix = f.value;
            if (f.number == 35) m->byte_fallback = f.value;
        } else if (f.type == WIRE_BYTES) {
            if (f.number == 44) set_text(&m->unk_surface, &f);
            if (f.number == 46) set_text(&m->bos_piece, &f);
            if (f.number == 47) set_text(&m->eos_piece, &f);
            if (f.number == 48) set_text(&m->pad_piece, &f);
        }
    }
    return message.damaged ? damaged() : ERR_OK;
}

static Err read_normalizer(Message message, SpmNormalizer *z) {
    for (Field f; message_next(&message, &f);) {
        if (f.number == 2 && f.type == WIRE_BYTES && f.n) {
            charsmap_free(z->charsmap);
            z->charsmap = NULL;
            set_text(&z->bytes, &f);
            ERR_RETURN(charsmap_load(f.bytes, f.n, &z->charsmap));
        }
        if (f.type != WIRE_VARINT) continue;
        if (f.number == 3) z->dummy_prefix = f.value;
        if (f.number == 4) z->remove_extra_whitespaces = f.value;
        if (f.number == 5) z->escape_whitespaces = f.value;
    }
    return message.damaged ? damaged() : ERR_OK;
}

static Err read_message(Message message, SpmModel *m) {
    for (Field f; message_next(&message, &f);) {
        if (f.type != WIRE_BYTES) continue;
        if (f.number == 1) ERR_RETURN(read_piece(message_of(&f), m));
        if (f.number == 2) ERR_RETURN(read_trainer(message_of(&f), m));
        if (f.number == 3) ERR_RETURN(read_normalizer(message_of(&f), &m->normalizer));
        if (f.number == 5) ERR_RETURN(read_normalizer(message_of(&f), &m->denormalizer));
    }
    return message.damaged ? damaged() : ERR_OK;
}

static Err check_bytes(const SpmModel *m) {
    for (int c = 0; c < 256 && m->byte_fallback; c++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", c);
        int32_t id = vocab_id(m->vocab, name, 6);
        if (id < 0 || m->pieces[id].type != PIECE_BYTE)
            return err_user("byte_fallback needs 256 byte pieces, but %s is missing", name);
    }
    return ERR_OK;
}

static Err check(SpmModel *m) {
    m->unk = -1;
    for (int32_t id = 0; id < vocab_limit(m->vocab); id++) {
        const PieceType type = m->pieces[id].type;
        if (type == PIECE_UNKNOWN && m->unk >= 0)
            return err_user("there are two unknown pieces, %d and %d", m->unk, id);
        if (type == PIECE_UNKNOWN) m->unk = id;
        if (type == PIECE_BYTE && !m->byte_fallback)
            return err_user("piece %d is a byte, but byte_fallback is off", id);
        if (type == PIECE_UNUSED && m->kind == SPM_BPE)
            return err_user("piece %d has the type UNUSED, which is not supported in a BPE model", id);
    }
    if (m->unk < 0) return err_user("there is no unknown piece, or the file is not a SentencePiece model");
    if (m->kind != SPM_UNIGRAM && m->kind != SPM_BPE) return err_user("model_type must be unigram or bpe");
    return check_bytes(m);
}

Err spm_model_read(const char *bytes, size_t n, SpmModel *m) {
    const SpmNormalizer usual = {NULL, {0}, true, true, true};
    m->vocab = vocab_new();
    m->kind = SPM_UNIGRAM;
    m->normalizer = m->denormalizer = usual;
    str_puts(&m->bos_piece, "<s>"), str_puts(&m->eos_piece, "</s>"), str_puts(&m->pad_piece, "<pad>");
    str_puts(&m->unk_surface, " \xE2\x81\x87 ");
    ERR_RETURN(read_message((Message){bytes, n, false}, m));
    return check(m);
}
