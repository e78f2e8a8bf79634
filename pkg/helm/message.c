#include "helm/message.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "helm/redact.h"

struct part {
    const char *text;
    size_t len;
    bool quoted; /* as Go's %q does it */
};

/* What follows the first line that begins with prefix, up to the end. */
static bool after_line_prefix(const struct part *all, const char *prefix, struct part *ret)
{
    size_t n = strlen(prefix);
    const char *end = all->text + all->len;
    for (const char *line = all->text; line < end;) {
        if ((size_t)(end - line) >= n && memcmp(line, prefix, n) == 0) {
            *ret = (struct part){.text = line + n, .len = (size_t)(end - line) - n};
            return true;
        }
        const char *nl = memchr(line, '\n', (size_t)(end - line));
        line = nl != NULL ? nl + 1 : end;
    }
    return false;
}

/* helm 4 logs an error as level=WARN msg="..." error="..." before it prints it; of a very long one
 * only that is left. */
static bool logged_error(const struct part *all, struct part *ret)
{
    static const char mark[] = " error=\"";
    struct part line;
    if (!after_line_prefix(all, "level=WARN ", &line)) {
        return false;
    }
    const char *p = memmem(line.text, line.len, mark, strlen(mark));
    if (p == NULL) {
        return false;
    }
    p += strlen(mark);
    size_t left = (size_t)(line.text + line.len - p);
    size_t len = 0;
    while (len < left && p[len] != '"') {
        len += p[len] == '\\' && len + 1 < left ? 2 : 1;
    }
    *ret = (struct part){.text = p, .len = len, .quoted = true};
    return true;
}

static struct part last_words(const struct part *all)
{
    struct part found;
    /* cobra prints its one "Error: " last, and all that follows belongs to it; the other two are
     * Go's own. */
    if (after_line_prefix(all, "Error: ", &found) || logged_error(all, &found) ||
        after_line_prefix(all, "panic: ", &found) ||
        after_line_prefix(all, "fatal error: ", &found)) {
        return found;
    }
    return *all;
}

/* In place: Go's quoting, as far as errors have it. */
static void unquote(char *s)
{
    char *to = s;
    for (const char *from = s; *from != '\0'; from++) {
        if (*from == '\\' && from[1] != '\0') {
            from++;
            *to++ = *from == 'n' || *from == 't' || *from == 'r' ? ' ' : *from;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
}

/* In place: one space for each run of white space, none at either end. */
static void one_line(char *s)
{
    char *to = s;
    for (const char *from = s; *from != '\0'; from++) {
        bool space = *from == ' ' || *from == '\t' || *from == '\n' || *from == '\r';
        if (!space) {
            *to++ = *from;
        } else if (to > s && to[-1] != ' ') {
            *to++ = ' ';
        }
    }
    while (to > s && to[-1] == ' ') {
        to--;
    }
    *to = '\0';
}

/* In place. */
static void drop(char *s, const char *word)
{
    char *p = strstr(s, word);
    if (p != NULL) {
        memmove(p, p + strlen(word), strlen(p + strlen(word)) + 1);
    }
}

static const char *without_prefixes(const char *s)
{
    static const char *const prefixes[] = {"UPGRADE FAILED: ", "INSTALLATION FAILED: "};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (text_has_prefix(s, prefixes[i])) {
            return s + strlen(prefixes[i]);
        }
    }
    return s;
}

char *message_read(const struct message_source *source, bool *ret_cancelled)
{
    struct part words = last_words(&(struct part){.text = source->text, .len = source->len});
    bool cut = words.len > REDACT_TEXT_MAX;
    struct redact_options options = {
        .secrets = source->secrets, .keep = source->keep, .truncated = cut || source->truncated};
    _cleanup_(free_cstr)
    char *text = redact_text(words.text, cut ? REDACT_TEXT_MAX : words.len, &options);
    if (words.quoted) {
        unquote(text);
    }
    one_line(text);
    /* go-multierror's frame around a single error. */
    drop(text, "1 error occurred: * ");
    const char *bare = without_prefixes(text);
    *ret_cancelled = text_has_suffix(bare, "context canceled");
    return text_clean(bare, strlen(bare), LIMIT_MESSAGE_BYTES);
}
