/* generate DIR SEED COUNT: write COUNT YAML documents to DIR/NNNN.yaml, the same ones for the same
 * SEED. They are maps in block and flow style of what readers of YAML disagree about: words,
 * numbers, tags, quotes, folding, anchors, merge keys, odd keys. Every fifth is spoilt at one
 * place, so some are no YAML. (A spoilt one may show a difference that is meant: then another is
 * made.) */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/text.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct gen {
    uint64_t random;
    struct buf out;
    unsigned anchors;
    enum stands_for { OPEN, SCALAR, SEQ, MAP } stands_for[64]; /* what anchor n stands for */
};

/* splitmix64 (Steele, Lea and Flood, 2014). */
static unsigned pick(struct gen *g, unsigned n)
{
    uint64_t z = (g->random += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return (unsigned)((z ^ (z >> 31)) % n);
}

#define ONE_OF(g, a) ((a)[pick((g), COUNT(a))])

static const char *const words[] = {
    "y",
    "Y",
    "yes",
    "Yes",
    "YES",
    "yEs",
    "n",
    "N",
    "no",
    "No",
    "NO",
    "on",
    "On",
    "ON",
    "oN",
    "off",
    "Off",
    "OFF",
    "true",
    "True",
    "TRUE",
    "tRUE",
    "false",
    "False",
    "FALSE",
    "null",
    "Null",
    "NULL",
    "nULL",
    "~",
    "",
    "NaN",
    "Infinity",
    "inf",
    "<<",
    "=",
    "~x",
    "yess",
    "nope",
    "2001-12-14",
    "2001-12-14T21:59:43.10-05:00",
    "2001-12-14 21:59:43",
    "12:30:45",
    "190:20:30.15",
    "v1.2.3",
    "1.2.3",
    "10.0.0.1",
    "a b",
    "a  b",
    "a#b",
    "a:b",
    "x=y",
    "http://h:1/p/q=1#f",
    "50%",
    "\xC3\xA9",
    "\xE6\x97\xA5\xE6\x9C\xAC",
    "\xF0\x9F\x98\x80",
    "-x",
    "?x",
    ":x",
    "a,b",
    "a]b",
    "a'b",
    "a\"b",
};
static const char *const numbers[] = {
    "0",
    "-0",
    "+0",
    "00",
    "7",
    "-7",
    "+7",
    "07",
    "08",
    "-017",
    "0o17",
    "0O17",
    "0o8",
    "0x1F",
    "0X1f",
    "-0x1F",
    "+0x10",
    "0x",
    "0b101",
    "0B101",
    "-0b101",
    "0b2",
    "0b-1",
    "0b+1",
    "-0b-1",
    "0b",
    "1_000",
    "1__0",
    "_1",
    "1_",
    "-_1",
    "0x_F",
    "0_7",
    "1e3",
    "1E3",
    "1e+3",
    "1e-3",
    "1e",
    "1e+",
    ".5",
    "-.5",
    "+.5",
    ".5_5",
    "._5",
    ".5_",
    "5.",
    "5.e1",
    ".",
    "-",
    "+",
    "..",
    "1.5",
    "1_0.5",
    "-1.5e-10",
    "1.0",
    "1000000",
    "356136738",
    "1e6",
    "1e21",
    "1e-7",
    "123456789.123456789",
    "0.1",
    "0.30000000000000004",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "+18446744073709551615",
    "0xFFFFFFFFFFFFFFFF",
    "0x10000000000000000",
    "0777777777777777777777",
    "01777777777777777777777",
    "1e308",
    "1e309",
    "-1e400",
    "1e-400",
    "-0.0",
    "0.0",
    "1x",
    "1 2",
    "1,2",
    "0.1.2",
    "--1",
    "+-1",
    "1e5e5",
    "0x1p3",
    "1f",
    "1L",
};
static const char *const quoted[] = {
    "''",
    "\"\"",
    "'yes'",
    "\"yes\"",
    "'1'",
    "\"1\"",
    "'null'",
    "\"~\"",
    "'it''s'",
    "\"a\\tb\"",
    "\"a\\nb\"",
    "\"\\x41\\u00e9\\U0001F600\"",
    "\"\\e\\a\\b\\v\\f\"",
    "\"\\N\\_\\L\\P\"",
    "\"\\\\\"",
    "'\\n'",
    "\"\\u0085\\u2028\\ufeff\\ufffe\\u0080\\u007f\"",
    "\" lead and trail \"",
    "'<<'",
    "\"\\\"q\\\"\"",
    "'# no'",
    "\"\\xff\"",
    "\"\\ud800\"",
    "\"\\q\"",
    "'a: b'",
    "\"{}\"",
    "\"%s\"",
    "\" \xC2\x85 x\"",
    "\"a \xE2\x80\xA8 b\"",
    "'a \xE2\x80\xA9 b'",
    "\"\xC2\xA0\"",
};
static const char *const tags[] = {
    "!!str ",
    "!!int ",
    "!!float ",
    "!!bool ",
    "!!null ",
    "!!binary ",
    "!!merge ",
    "!!map ",
    "!!seq ",
    "! ",
    "!own ",
    "!!own ",
    "!<tag:yaml.org,2002:int> ",
    "!<x> ",
    "!u!x ",
};
static const char *const binaries[] = {
    "aGVsbG8=",        "gIGC",      "YQ==", "YQ=",  "YQ",       "A===", "====",
    "\"aGVs\\nbG8=\"", "aGVs bG8=", "w6k=", "\"\"", "aGVsbG8*",
};
static const char *const keys[] = {
    "a", "b",  "c",   "d",   "key",  "a.b",        "a/b",      "\"a b\"", "'yes'", "yes", "off",
    "1", "01", "0x1", "1.5", "true", "2001-12-14", "\xC3\xA9", "-k",      "k#k",   "''",
};
static const char *const odd_keys[] = {
    "1e6",         "123456789.5", "0.00001", ".inf",       "-.inf", "k: ",
    "\"\\u0085\"", "? x",         "[a]",     "{a: 1}",     "\" \"", "!!binary YQ==",
    "<<x",         "*x0 ",        "&x0 k",   "!!merge <<", "'<<'",
};

static void add(struct gen *g, const char *s)
{
    buf_add_str(&g->out, s);
}

static void indent(struct gen *g, unsigned n)
{
    buf_addf(&g->out, "%*s", (int)n, "");
}

static void key(struct gen *g)
{
    add(g, pick(g, 12) == 0 ? ONE_OF(g, odd_keys) : ONE_OF(g, keys));
}

#define NO_ANCHOR 64U

static unsigned anchor(struct gen *g)
{
    if (pick(g, 6) != 0 || g->anchors == COUNT(g->stands_for)) {
        return NO_ANCHOR;
    }
    /* A name may be set again. */
    unsigned n = g->anchors > 0 && pick(g, 6) == 0 ? pick(g, g->anchors) : g->anchors++;
    g->stands_for[n] = OPEN;
    buf_addf(&g->out, "&x%u ", n);
    return n;
}

static void stands_for(struct gen *g, unsigned n, enum stands_for what)
{
    if (n != NO_ANCHOR) {
        g->stands_for[n] = what;
    }
}

static void scalar(struct gen *g)
{
    stands_for(g, anchor(g), SCALAR);
    if (pick(g, 20) == 0) {
        const char *tag = ONE_OF(g, tags);
        add(g, tag);
        if (strcmp(tag, "!!binary ") == 0) {
            add(g, ONE_OF(g, binaries));
            return;
        }
    }
    switch (pick(g, 5)) {
    case 0:
    case 1:
        add(g, ONE_OF(g, words));
        break;
    case 2:
    case 3:
        add(g, ONE_OF(g, numbers));
        break;
    default:
        add(g, ONE_OF(g, quoted));
    }
}

/* To something of that kind or more, if there is one. */
static void alias(struct gen *g, enum stands_for at_least)
{
    enum stands_for want = pick(g, 20) == 0 ? OPEN : at_least;
    for (unsigned tries = 0; tries < 20 && g->anchors > 0; tries++) {
        unsigned n = pick(g, g->anchors);
        if (g->stands_for[n] >= want) {
            buf_addf(&g->out, "*x%u ", n);
            return;
        }
    }
    add(g, at_least == MAP ? "{d: 4}" : "none");
}

static void merge_value(struct gen *g)
{
    switch (pick(g, 4)) {
    case 0:
        add(g, "{a: merged, b: 2}");
        break;
    case 1:
        add(g, "[");
        alias(g, MAP);
        add(g, ", {b: in list}, ");
        alias(g, MAP);
        add(g, "]");
        break;
    default:
        alias(g, pick(g, 10) == 0 ? SEQ : MAP);
    }
}

/* Bounded: depth falls with each level. */
static void flow(struct gen *g, unsigned depth)
{
    unsigned kind = depth == 0 ? 0 : pick(g, 4);
    if (kind < 2) {
        pick(g, 6) == 0 ? alias(g, SCALAR) : scalar(g);
        return;
    }
    unsigned name = anchor(g);
    add(g, kind == 2 ? "{" : "[");
    unsigned n = pick(g, 4);
    for (unsigned i = 0; i < n; i++) {
        add(g, i > 0 ? ", " : "");
        if (kind == 2) {
            key(g);
            add(g, pick(g, 20) == 0 ? "" : ": ");
        }
        flow(g, depth - 1);
    }
    add(g, pick(g, 10) == 0 ? "," : "");
    add(g, kind == 2 ? "}" : "]");
    stands_for(g, name, kind == 2 ? MAP : SEQ);
}

static const char *const lines[] = {
    "text", "two words", "",        "  deeper", "\ttab",    "# no comment",
    "a: b", "- x",       "trail  ", "'q'",      "\xC3\xA9", "%d",
};

static void block_scalar(struct gen *g, unsigned at)
{
    static const char *const heads[] = {"|", "|-", "|+", ">", ">-", ">+", "|2", ">1-", "| # note"};
    add(g, ONE_OF(g, heads));
    add(g, "\n");
    unsigned n = pick(g, 5);
    for (unsigned i = 0; i < n; i++) {
        const char *line = ONE_OF(g, lines);
        if (line[0] != '\0') {
            indent(g, at + 2);
        }
        add(g, line);
        add(g, "\n");
    }
}

static void folded(struct gen *g, unsigned at)
{
    static const char *const quotes[] = {"", "'", "\""};
    const char *quote = ONE_OF(g, quotes);
    add(g, quote);
    add(g, "first");
    unsigned n = 1 + pick(g, 3);
    for (unsigned i = 0; i < n; i++) {
        add(g, pick(g, 4) == 0 ? "\n\n" : "\n");
        indent(g, at + 1 + pick(g, 3));
        add(g, "next");
    }
    add(g, quote);
    add(g, "\n");
}

static void block(struct gen *g, unsigned at, unsigned depth);

/* What follows "key:" or "-", to the end of its line or of its block. */
static void value(struct gen *g, unsigned at, unsigned depth)
{
    switch (pick(g, depth == 0 ? 6 : 9)) {
    case 0:
    case 1:
    case 2:
        add(g, " ");
        scalar(g);
        add(g, pick(g, 8) == 0 ? " # note\n" : "\n");
        break;
    case 3:
        add(g, " ");
        flow(g, 3);
        add(g, "\n");
        break;
    case 4:
        add(g, " ");
        block_scalar(g, at);
        break;
    case 5:
        add(g, " ");
        if (pick(g, 2) == 0) {
            folded(g, at);
        } else {
            alias(g, SCALAR);
            add(g, "\n");
        }
        break;
    default:
        block(g, at + 1 + pick(g, 3), depth - 1);
    }
}

static void block(struct gen *g, unsigned at, unsigned depth)
{
    bool is_map = at == 0 || pick(g, 3) > 0;
    unsigned name = NO_ANCHOR;
    if (at > 0) {
        add(g, " ");
        name = anchor(g);
        add(g, "\n");
    }
    unsigned n = 1 + pick(g, 3);
    for (unsigned i = 0; i < n; i++) {
        indent(g, at);
        if (is_map && pick(g, 10) == 0) {
            add(g, "<<: ");
            merge_value(g);
            add(g, "\n");
            continue;
        }
        if (is_map) {
            key(g);
        }
        add(g, is_map ? ":" : "-");
        value(g, at, depth);
        add(g, pick(g, 12) == 0 ? "\n" : "");
        add(g, pick(g, 12) == 0 ? "# a line\n" : "");
    }
    stands_for(g, name, is_map ? MAP : SEQ);
}

/* One byte less, more or other; or CRLF for each line end. */
static void spoil(struct gen *g)
{
    static const char bytes[] = " \t\n:-,[]{}#&*!|>'\"%@`a1.\r~<\x01\x7F";
    struct buf old = g->out;
    g->out = (struct buf)BUF_INIT(old.max_len);
    if (pick(g, 6) == 0) {
        for (size_t i = 0; i < old.len; i++) {
            add(g, old.data[i] == '\n' ? "\r" : "");
            buf_add_char(&g->out, old.data[i]);
        }
    } else {
        size_t at = pick(g, (unsigned)old.len);
        unsigned how = pick(g, 3);
        buf_add(&g->out, old.data, at);
        if (how > 0) {
            buf_add_char(&g->out, bytes[pick(g, sizeof(bytes) - 1)]);
        }
        size_t from = at + (how < 2 ? 1 : 0);
        buf_add(&g->out, old.data + from, old.len - from);
    }
    buf_release(&old);
}

/* Does the text hold what belay and helm read differently on purpose (README of yamlx)? A guess: it
 * may say so of others too. */
static bool differs_on_purpose(const struct buf *text)
{
    static const char *const always[] = {"\\0", "\\'", "\\/", ":,"};
    for (size_t i = 0; i < COUNT(always); i++) {
        if (strstr(buf_str(text), always[i]) != NULL) {
            return true;
        }
    }
    /* A question mark inside of a word of a flow, a flow's mark in a tag. */
    bool flow_seen = false;
    bool in_tag = false;
    char last = ','; /* that is no blank */
    for (size_t i = 0; i < text->len; i++) {
        char c = text->data[i];
        bool blank = strchr(" \t\r\n", c) != NULL;
        in_tag = !blank && (in_tag || c == '!');
        if ((in_tag && strchr(",[]{}", c) != NULL) ||
            (flow_seen && c == '?' && strchr("[{,:-", last) == NULL)) {
            return true;
        }
        flow_seen = flow_seen || c == '[' || c == '{';
        last = blank ? last : c;
    }
    return false;
}

static void write_document(const char *dir, unsigned n, const struct buf *text)
{
    _cleanup_(free_cstr)
    char *path = xasprintf("%s/%05u.yaml", dir, n);
    FILE *f = fopen(path, "wb");
    must(f != NULL);
    must(fwrite(text->data, 1, text->len, f) == text->len);
    must(fclose(f) == 0);
}

int main(int argc, char **argv)
{
    int64_t seed = 0;
    int64_t count = 0;
    if (argc != 4 || !text_to_int64(argv[2], 0, INT64_MAX, &seed) ||
        !text_to_int64(argv[3], 1, 99999, &count)) {
        (void)fprintf(stderr, "usage: generate DIR SEED COUNT\n");
        return 2;
    }
    for (unsigned n = 0; n < (unsigned)count; n++) {
        struct gen g = {.random = (uint64_t)seed * 1000003 + n, .out = BUF_INIT(1U << 20)};
        do {
            buf_reset(&g.out);
            g.anchors = 0;
            add(&g, pick(&g, 10) == 0 ? "---\n" : "");
            block(&g, 0, 3);
            if (pick(&g, 5) == 0) {
                spoil(&g);
            }
        } while (differs_on_purpose(&g.out));
        write_document(argv[1], n, &g.out);
        buf_release(&g.out);
    }
    return 0;
}
