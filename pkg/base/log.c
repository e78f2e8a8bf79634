#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"

#define LOG_LINE_BYTES_MAX (64U << 10)
#define LOG_CUT_MSG_BYTES  1024
#define LOG_CTX_FIELDS     8
#define LOG_CTX_TEXT_BYTES 256

static struct log_options options_of = {
    .format = LOG_FORMAT_FMT, .level = LOG_INFO, .now_wall_ns = NULL};

struct log_ctx {
    struct log_field fields[LOG_CTX_FIELDS];
    char texts[LOG_CTX_FIELDS][LOG_CTX_TEXT_BYTES];
    size_t count;
};

static _Thread_local struct log_ctx ctx;

void log_init(const struct log_options *options)
{
    options_of = *options;
}

bool log_enabled(enum log_level level)
{
    return level >= options_of.level;
}

static const char *level_name(enum log_level level)
{
    switch (level) {
    case LOG_DEBUG:
        return "debug";
    case LOG_INFO:
        return "info";
    case LOG_WARN:
        return "warn";
    case LOG_ERROR:
        return "error";
    }
    return "error";
}

static void add_timestamp(struct buf *line)
{
    if (options_of.now_wall_ns == NULL) {
        return;
    }
    int64_t ns = options_of.now_wall_ns();
    time_t sec = (time_t)(ns / 1000000000);
    struct tm tm;
    if (gmtime_r(&sec, &tm) == NULL) {
        return;
    }
    char text[40];
    size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(text + n, sizeof(text) - n, ".%06dZ", (int)(ns % 1000000000 / 1000));
    buf_addf(line, options_of.format == LOG_FORMAT_JSON ? "\"ts\":\"%s\"," : "ts=%s ", text);
}

static bool needs_quotes(const char *s)
{
    if (*s == '\0') {
        return true;
    }
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        /* Quoting also cleans what may be no UTF-8. */
        if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c >= 0x7F) {
            return true;
        }
    }
    return false;
}

static void add_field(struct buf *line, const struct log_field *f)
{
    bool json = options_of.format == LOG_FORMAT_JSON;
    buf_addf(line, json ? ",\"%s\":" : " %s=", f->name);
    if (f->text == NULL) {
        buf_addf(line, "%lld", (long long)f->number);
    } else if (json || needs_quotes(f->text)) {
        buf_add_json_str(line, f->text);
    } else {
        buf_add_str(line, f->text);
    }
}

/* Everything but the call's own fields: time, level, component, message, and the thread's fields.
 */
static void add_head(struct buf *line, enum log_level level, const char *component, const char *msg)
{
    bool json = options_of.format == LOG_FORMAT_JSON;
    buf_add_str(line, json ? "{" : "");
    add_timestamp(line);
    buf_addf(line, json ? "\"level\":\"%s\",\"component\":\"%s\"" : "level=%s component=%s",
             level_name(level), component);
    add_field(line, &LOG_S("msg", msg));
    for (size_t i = 0; i < ctx.count; i++) {
        add_field(line, &ctx.fields[i]);
    }
}

void log_write(enum log_level level, const char *component, const char *msg,
               const struct log_field *fields, size_t n)
{
    if (!log_enabled(level)) {
        return;
    }
    struct buf line = BUF_INIT(LOG_LINE_BYTES_MAX);
    add_head(&line, level, component, msg);
    for (size_t i = 0; i < n; i++) {
        if (fields[i].name != NULL) {
            add_field(&line, &fields[i]);
        }
    }
    if (line.overflow) {
        /* Half a field would be no field: the message's beginning and the thread's fields have to
         * do. */
        _cleanup_(free_cstr)
        char *beginning = text_clean(msg, strlen(msg), LOG_CUT_MSG_BYTES);
        buf_reset(&line);
        add_head(&line, level, component, beginning);
        add_field(&line, &LOG_I("cut", 1));
    }
    line.max_len += 2; /* the end always fits */
    buf_add_str(&line, options_of.format == LOG_FORMAT_JSON ? "}\n" : "\n");
    /* A log that cannot be written is ignored: there is nowhere to report it. */
    ssize_t ignored = write(STDERR_FILENO, line.data, line.len);
    (void)ignored;
    buf_release(&line);
}

void log_ctx_put(struct log_field field)
{
    size_t i = 0;
    while (i < ctx.count && strcmp(ctx.fields[i].name, field.name) != 0) {
        i++;
    }
    if (i == LOG_CTX_FIELDS) {
        return;
    }
    if (i == ctx.count) {
        ctx.count++;
    }
    if (field.text != NULL) {
        (void)snprintf(ctx.texts[i], LOG_CTX_TEXT_BYTES, "%s", field.text);
        text_trim_utf8(ctx.texts[i]);
        field.text = ctx.texts[i];
    }
    ctx.fields[i] = field;
}

void log_ctx_set(const struct log_field *fields, size_t n)
{
    ctx.count = 0;
    for (size_t i = 0; i < n; i++) {
        log_ctx_put(fields[i]);
    }
}

void log_ctx_clear(void)
{
    ctx.count = 0;
}
