#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "helm/helm.h"
#include "helm/message.h"
#include "helm/redact.h"
#include "jsonx/jsonx.h"

static json_t *parse(const char *text)
{
    if (text == NULL) {
        return NULL;
    }
    json_t *j = NULL;
    struct err err = ERR_INIT;
    if (jsonx_parse(text, strlen(text), &j, &err) != ERR_NONE) {
        fail_msg("%s in %s", err.msg, text);
    }
    return j;
}

/* ---- redact ---- */

static const struct {
    const char *name;
    const char *secrets; /* JSON; NULL: none */
    const char *text, *want;
} redact_rows[] = {
    {"nothing secret", NULL, "a\nb \"c\"", "a\nb \"c\""},
    {"empty text", "[\"s3cr3t\"]", "", ""},
    {"as it stands", "[\"s3cr3t\"]", "pw s3cr3t, again s3cr3t.",
     "pw [redacted], again [redacted]."},
    {"the whole text", "[\"s3cr3t\"]", "s3cr3t", "[redacted]"},
    {"deep in a tree", "{\"a\":[{\"b\":\"s3cr3t\"}],\"c\":null,\"d\":true,\"e\":1.5}", "x s3cr3t",
     "x [redacted]"},
    {"five bytes are no secret", "[\"abcde\"]", "abcde", "abcde"},
    {"two that touch become one word", "[\"s3cr3t\",\"pa55wd\"]", "s3cr3tpa55wd", "[redacted]"},
    {"two that overlap", "[\"abcdef\",\"defghi\"]", "-abcdefghi-", "-[redacted]-"},
    {"one that overlaps itself", "[\"ababab\"]", "ababababa", "[redacted]a"},
    {"a secret of one letter", "[\"aaaaaa\"]", "aaaaaaaaaab", "[redacted]b"},
    {"quoted once", "[\"p\\\"w\\\\x7\"]", "is \"p\\\"w\\\\x7\" bad", "is \"[redacted]\" bad"},
    {"quoted twice", "[\"p\\\"w\\\\x7\"]", "\"[\\\"p\\\\\\\"w\\\\\\\\x7\\\"]\"",
     "\"[\\\"[redacted]\\\"]\""},
    {"JSON escapes of Go", "[\"a<b>c&d\"]", "\"a\\u003cb\\u003ec\\u0026d\"", "\"[redacted]\""},
    {"characters as \\u", "[\"p\xc3\xa9ss\xe2\x82\xac!\"]", "\"p\\u00e9ss\\u20ac!\"",
     "\"[redacted]\""},
    {"bytes as \\x", "[\"p\xc3\xa9ssw\"]", "\"p\\xc3\\xa9ssw\"", "\"[redacted]\""},
    {"a backslash before an n is no line feed", "[\"n3wpass\"]", "DOM\\n3wpass", "DOM\\[redacted]"},
    {"a line feed that became another space", "[\"one\\ntwo\\n\"]", "x one  two y",
     "x [redacted] y"},
    {"a line feed that was quoted", "[\"one\\ntwo\"]", "\"one\\\\ntwo\"", "\"[redacted]\""},
    {"white space around a secret", "[\" s3cr3t\\n\"]", "x=s3cr3t.", "x=[redacted]."},
    {"one line of many", "[\"first line\\nsecond line\\n\"]", "at second line: bad",
     "at [redacted]: bad"},
    {"the value of an assignment", "[\"APP_KEY=s3cr3t\\nB='hunter22'\\r\\n\"]",
     "s3cr3t or hunter22", "[redacted] or [redacted]"},
    {"the value of a YAML line", "[\"k: v\\npw: \\\"hunter22\\\"\\n\"]", "found hunter22",
     "found [redacted]"},
    {"base64", "[\"s3cr3t\"]", "x: czNjcjN0.", "x: [redacted]."},
    {"base64 with padding", "[\"s3cr3t!\"]", "x: czNjcjN0IQ==.", "x: [redacted]."},
    {"base64 inside a longer one, 1 byte in", "[\"s3cr3t-pw\"]", "(cHMzY3IzdC1wdw==)",
     "([redacted])"},
    {"base64 inside a longer one, 2 bytes in", "[\"s3cr3t-pw\"]", "(cHBzM2NyM3QtcHc=)",
     "([redacted])"},
    {"percent-encoded", "[\"a b/c%d\"]", "?pw=a%20b%2Fc%25d&x", "?pw=[redacted]&x"},
    {"a number", "[12345678]", "PIN 12345678", "PIN [redacted]"},
    {"a number as Go prints a float", "{\"pin\":12345678,\"n\":-2500000}",
     "PIN 1.2345678e+07 or 2.5e+06", "PIN [redacted] or [redacted]"},
    {"a short number", "[12345]", "port 12345", "port 12345"},
    {"byte numbers", NULL, "yaml: [115 51 99 114 51 116] x", "yaml: [redacted] x"},
    {"byte numbers with commas", NULL, "[]byte{0x73, 0x33, 0x63, 0x72, 0x33, 0x74}",
     "[]byte[redacted]"},
    {"byte numbers that are cut off", NULL, "[115 51 99 114 51 11", "[redacted]"},
    {"a short list stays", NULL, "ports [80 443 8080]", "ports [80 443 8080]"},
    {"a list of larger numbers stays", NULL, "[1000 1001 1002 1003 1004 1005]",
     "[1000 1001 1002 1003 1004 1005]"},
    {"data of a quoted object", NULL,
     "Invalid value: "
     "\"{\\\"apiVersion\\\":\\\"v1\\\",\\\"data\\\":{\\\"pw\\\":\\\"c\\\"},\\\"kind\\\":"
     "\\\"Secret\\\"}\": why",
     "Invalid value: \"{\\\"apiVersion\\\":\\\"v1\\\",\\\"data\\\":[redacted]\": why"},
    {"stringData whose content has brackets", NULL,
     "{\"stringData\":{\"a\":\"}]\",\"b\":\"xy\"}}: why", "{\"stringData\":[redacted]: why"},
    {"data that is cut off", NULL, "{\"data\":\"x y z", "{\"data\":[redacted]"},
    {"a Secret as Go prints it", NULL, "Secret{Data:map[string][]byte{pw: xy},} bad",
     "Secret{Data:map[[redacted] bad"},
    {"the word data alone", NULL, "data: Forbidden: data[a key]: Invalid value: \"a key\"",
     "data: Forbidden: data[a key]: Invalid value: \"a key\""},
    {"user and password of a URL", NULL, "Get \"https://u:p@w@host/x\": no",
     "Get \"https://[redacted]@host/x\": no"},
    {"a URL without", NULL, "Get \"https://host/x?a=b@c\": no", "Get \"https://host/x?a=b@c\": no"},
    {"what go-yaml leaves of a scalar", NULL, "cannot unmarshal !!str `s3cr3t-...` into map",
     "cannot unmarshal !!str `[redacted]` into map"},
    {"other backticks", NULL, "when `immutable` is set, see `helm dep`",
     "when `immutable` is set, see `helm dep`"},
    {"a name that is kept", "[\"podinfo\",\"s3cr3t\"]", "Secret \"podinfo\" s3cr3t",
     "Secret \"podinfo\" [redacted]"},
    {"names inside other words are kept too", "[\"podinfo\"]", "podinfo-cm", "podinfo-cm"},
};

static const char *const keep[] = {"podinfo", NULL};

static void secrets_leave_the_text_and_the_rest_stays(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(redact_rows) / sizeof(redact_rows[0]); i++) {
        _cleanup_json_ json_t *secrets = parse(redact_rows[i].secrets);
        struct redact_options o = {.secrets = secrets, .keep = keep};
        _cleanup_(free_cstr)
        char *got = redact_text(redact_rows[i].text, strlen(redact_rows[i].text), &o);
        if (strcmp(got, redact_rows[i].want) != 0) {
            fail_msg("%s:\n got %s\nwant %s", redact_rows[i].name, got, redact_rows[i].want);
        }
    }
}

static void a_secret_is_found_wherever_the_text_is_cut(void **state)
{
    (void)state;
    static const char text[] = "before s3cr3t-p@ss\\\"w0rd after";
    _cleanup_json_ json_t *secrets = parse("[\"s3cr3t-p@ss\\\"w0rd\"]");
    for (size_t len = 0; len <= strlen(text); len++) {
        struct redact_options o = {.secrets = secrets, .truncated = true};
        _cleanup_(free_cstr)
        char *got = redact_text(text, len, &o);
        /* Not one letter of it: the texts around it have no digit. */
        assert_null(strpbrk(got, "30@"));
    }
}

static void nothing_is_shown_of_a_tree_that_is_too_deep(void **state)
{
    (void)state;
    json_t *tree = json_string("s3cr3t");
    for (int i = 0; i < 1000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, tree);
        tree = outer;
    }
    struct redact_options o = {.secrets = tree};
    _cleanup_(free_cstr)
    char *got = redact_text("x s3cr3t", 8, &o);
    assert_string_equal(got, "[redacted]");
    json_decref(tree);
}

static void long_secrets_of_one_letter_end_in_time(void **state)
{
    (void)state;
    char *text = xmalloc(REDACT_TEXT_MAX);
    memset(text, 'a', REDACT_TEXT_MAX);
    json_t *secrets = json_array();
    for (size_t i = 0; i < 200; i++) {
        json_array_append_new(secrets, json_stringn(text, 8000 + i));
    }
    struct redact_options o = {.secrets = secrets, .truncated = true};
    _cleanup_(free_cstr)
    char *got = redact_text(text, REDACT_TEXT_MAX, &o);
    assert_string_equal(got, "[redacted]");
    json_decref(secrets);
    free(text);
}

/* ---- message ---- */

static const struct {
    const char *name, *text, *secrets, *want;
    bool cancelled;
} message_rows[] = {
    {"nothing said", "", NULL, "", false},
    {"white space only", " \n\n", NULL, "", false},
    {"a plain error", "Error: path \"/x.tgz\" not found\n\n", NULL, "path \"/x.tgz\" not found",
     false},
    {"helm's prefix goes", "Error: UPGRADE FAILED: no\n", NULL, "no", false},
    {"so does the one of an install", "Error: INSTALLATION FAILED: no\n", NULL, "no", false},
    {"prefixes inside stay", "Error: a: UPGRADE FAILED: no\n", NULL, "a: UPGRADE FAILED: no",
     false},
    {"warnings before it go",
     "I1201 09:55:56.1 1 warnings.go:107] \"Warning: unknown field\"\nlevel=WARN msg=\"upgrade "
     "failed\" error=\"no\"\nError: no\n",
     NULL, "no", false},
    {"lines become one",
     "Error: UPGRADE FAILED: a.yaml:4:1\n  executing \"a.yaml\" at <.x>:\n    nil pointer\n\n",
     NULL, "a.yaml:4:1 executing \"a.yaml\" at <.x>: nil pointer", false},
    {"the frame around one error goes",
     "Error: UPGRADE FAILED: pre-upgrade hooks failed: 1 error occurred:\n\t* timed out waiting "
     "for the condition\n\n\n",
     NULL, "pre-upgrade hooks failed: timed out waiting for the condition", false},
    {"the first Error line counts, the rest is its text", "x\nError: a\nError: b\n", NULL,
     "a Error: b", false},
    {"Error inside a line is none", "the Error: is old\nError: new\n", NULL, "new", false},
    {"only helm 4's log line is left",
     "level=WARN msg=\"upgrade failed\" name=e error=\"failed: ConfigMap \\\"b\\\" "
     "is\\ninvalid\"\n",
     NULL, "failed: ConfigMap \"b\" is invalid", false},
    {"a log line without an error", "level=WARN msg=\"odd\"\n", NULL, "level=WARN msg=\"odd\"",
     false},
    {"a panic", "panic: runtime error: x\n\ngoroutine 1", NULL, "runtime error: x goroutine 1",
     false},
    {"no form at all", "exec format error\n", NULL, "exec format error", false},
    {"SIGINT to an install", "Error: context canceled\n", NULL, "context canceled", true},
    {"SIGINT to an upgrade, helm 4",
     "level=WARN msg=\"upgrade failed\" name=i error=\"context canceled\"\nError: UPGRADE FAILED: "
     "context canceled\n",
     NULL, "context canceled", true},
    {"SIGINT while helm 4 waits", "Error: UPGRADE FAILED: resource not ready\ncontext canceled\n",
     NULL, "resource not ready context canceled", true},
    {"cancelled is not the last word", "Error: context canceled by the chart\n", NULL,
     "context canceled by the chart", false},
    {"redacted", "Error: UPGRADE FAILED: Secret \"podinfo\" is invalid: \"s3cr3t\"\n",
     "[\"s3cr3t\",\"podinfo\"]", "Secret \"podinfo\" is invalid: \"[redacted]\"", false},
    {"control characters", "Error: a\033[31mb\n", NULL, "a?[31mb", false},
};

static void helms_last_words_become_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(message_rows) / sizeof(message_rows[0]); i++) {
        _cleanup_json_ json_t *secrets = parse(message_rows[i].secrets);
        struct message_source source = {.text = message_rows[i].text,
                                        .len = strlen(message_rows[i].text),
                                        .secrets = secrets,
                                        .keep = keep};
        bool cancelled = false;
        _cleanup_(free_cstr)
        char *got = message_read(&source, &cancelled);
        if (strcmp(got, message_rows[i].want) != 0 || cancelled != message_rows[i].cancelled) {
            fail_msg("%s:\n got %s (%d)\nwant %s (%d)", message_rows[i].name, got, cancelled,
                     message_rows[i].want, message_rows[i].cancelled);
        }
    }
}

static void a_message_of_any_length_is_cut_at_a_character(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(LIMIT_HELM_OUTPUT);
    buf_add_str(&b, "Error: ");
    for (size_t n = 0; n < 60000; n++) {
        buf_add_str(&b, "x\xc3\xa9");
        if (n > 600 && n % 10000 != 0) {
            continue;
        }
        struct message_source source = {.text = buf_str(&b), .len = b.len, .truncated = n % 2 == 0};
        bool cancelled = false;
        _cleanup_(free_cstr)
        char *got = message_read(&source, &cancelled);
        size_t len = strlen(got);
        assert_true(len <= LIMIT_MESSAGE_BYTES);
        assert_true(text_has_prefix(got, "x\xc3\xa9"));
        assert_null(strchr(got, '?'));
        assert_int_equal(text_has_suffix(got, "..."), n + 1 > LIMIT_MESSAGE_BYTES / 3);
    }
    buf_release(&b);
}

/* ---- a process that only pretends ---- */

struct child {
    struct proc_result result;
};
struct fake {
    struct proc base;
    const char *out, *err; /* what it says */
    int exit_code, signal;
    bool timed_out;
    enum err_kind start_fails, wait_fails;
    struct child child;
    /* what was seen */
    struct buf argv, envp, input;
    int freed;
};

static enum err_kind fake_start(struct proc *p, const struct proc_spec *spec, struct child **ret,
                                struct err *err)
{
    struct fake *f = (struct fake *)(void *)p;
    if (f->start_fails != ERR_NONE) {
        return err_set(err, f->start_fails, "no such program");
    }
    for (size_t i = 0; spec->argv[i] != NULL; i++) {
        buf_addf(&f->argv, "%s|", spec->argv[i]);
    }
    for (size_t i = 0; spec->envp[i] != NULL; i++) {
        buf_addf(&f->envp, "%s|", spec->envp[i]);
    }
    if (spec->input_len > 0) {
        buf_add(&f->input, spec->input, spec->input_len);
    }
    *ret = &f->child;
    return ERR_NONE;
}

static struct fake *current; /* the one that the running test drives */

static enum err_kind fake_wait(struct child *c, struct proc_result *ret, struct err *err)
{
    (void)c;
    if (current->wait_fails != ERR_NONE) {
        return err_set(err, current->wait_fails, "cannot wait");
    }
    ret->exit_code = current->signal != 0 || current->timed_out ? -1 : current->exit_code;
    ret->signal = current->timed_out ? SIGKILL : current->signal;
    ret->timed_out = current->timed_out;
    ret->out = (struct buf)BUF_INIT(LIMIT_HELM_OUTPUT);
    ret->err = (struct buf)BUF_INIT(LIMIT_HELM_OUTPUT);
    buf_add_str(&ret->out, current->out != NULL ? current->out : "");
    buf_add_str(&ret->err, current->err != NULL ? current->err : "");
    return ERR_NONE;
}

static void fake_signal(struct child *c, int signo)
{
    (void)c;
    (void)signo;
}

static void fake_free(struct child *c)
{
    assert_ptr_equal(c, &current->child);
    current->freed++;
}

static const struct proc_ops fake_ops = {fake_start, fake_signal, fake_wait, fake_free};

static void fake_init(struct fake *f)
{
    *f = (struct fake){.base = {.ops = &fake_ops},
                       .out = "v3.22.0\n",
                       .argv = BUF_INIT(8192),
                       .envp = BUF_INIT(8192),
                       .input = BUF_INIT(8192)};
    current = f;
}

static void fake_release(struct fake *f)
{
    buf_release(&f->argv);
    buf_release(&f->envp);
    buf_release(&f->input);
}

static struct mono still_mono(struct clock *c)
{
    (void)c;
    return (struct mono){1000 * NS_PER_SEC};
}

static const struct clock_ops still_ops = {.mono = still_mono};
static struct clock still = {.ops = &still_ops};

static struct helm *open_fake(struct fake *f)
{
    struct helm_options o = {
        .proc = &f->base, .clock = &still, .path = "/opt/h/helm", .home_dir = "/var/h"};
    struct helm *h = NULL;
    struct err err = ERR_INIT;
    if (helm_open(&o, &h, &err) != ERR_NONE) {
        fail_msg("%s", err.msg);
    }
    buf_reset(&f->argv);
    buf_reset(&f->envp);
    f->freed = 0;
    f->out = NULL;
    return h;
}

static const struct {
    const char *name, *out;
    int exit_code;
    bool timed_out;
    enum err_kind start_fails, want;
    int major;
    const char *version;
} open_rows[] = {
    {"helm 3", "v3.22.0\n", 0, false, 0, ERR_NONE, 3, "v3.22.0"},
    {"helm 4", "v4.3.1+g123", 0, false, 0, ERR_NONE, 4, "v4.3.1+g123"},
    {"helm 2", "v2.17.0", 0, false, 0, ERR_INVALID, 0, NULL},
    {"helm 5", "v5.0.0", 0, false, 0, ERR_INVALID, 0, NULL},
    {"helm 30", "v30.0.0", 0, false, 0, ERR_INVALID, 0, NULL},
    {"a version that nobody set", "", 0, false, 0, ERR_INVALID, 0, NULL},
    {"something else", "usage: foo", 0, false, 0, ERR_INVALID, 0, NULL},
    {"a failure", "v3.22.0", 1, false, 0, ERR_INVALID, 0, NULL},
    {"a hang", "v3.22.0", 0, true, 0, ERR_TIMEOUT, 0, NULL},
    {"no such program", "", 0, false, ERR_INVALID, ERR_INVALID, 0, NULL},
    {"no process left", "", 0, false, ERR_UNAVAILABLE, ERR_UNAVAILABLE, 0, NULL},
};

static void open_reads_the_version_and_takes_3_and_4(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(open_rows) / sizeof(open_rows[0]); i++) {
        struct fake f;
        fake_init(&f);
        f.out = open_rows[i].out;
        f.exit_code = open_rows[i].exit_code;
        f.timed_out = open_rows[i].timed_out;
        f.start_fails = open_rows[i].start_fails;
        struct helm_options o = {
            .proc = &f.base, .clock = &still, .path = "/opt/h/helm", .home_dir = "/var/h"};
        struct helm *h = NULL;
        struct err err = ERR_INIT;
        enum err_kind kind = helm_open(&o, &h, &err);
        if (kind != open_rows[i].want ||
            (kind != ERR_NONE && strstr(err.msg, "/opt/h/helm") == NULL)) {
            fail_msg("%s: kind %d, %s", open_rows[i].name, (int)kind, err.msg);
        }
        if (kind == ERR_NONE) {
            assert_int_equal(helm_major(h), open_rows[i].major);
            assert_string_equal(helm_version(h), open_rows[i].version);
            assert_string_equal(helm_path(h), "/opt/h/helm");
            assert_string_equal(buf_str(&f.argv), "/opt/h/helm|version|--template|{{.Version}}|");
            assert_int_equal(f.freed, 1);
        }
        helm_close(h);
        fake_release(&f);
    }
}

static void open_says_where_it_looked(void **state)
{
    (void)state;
    _cleanup_(free_cstr)
    char *old = xstrdup(getenv("PATH") != NULL ? getenv("PATH") : "");
    assert_int_equal(setenv("PATH", "/nowhere:relative::/proc/self", 1), 0);
    struct fake f;
    fake_init(&f);
    struct helm_options o = {.proc = &f.base, .clock = &still, .home_dir = "/var/h"};
    struct helm *h = NULL;
    struct err err = ERR_INIT;
    assert_int_equal(helm_open(&o, &h, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "helm on PATH (/nowhere:relative::/proc/self)"));
    assert_non_null(strstr(err.hint, "--helm"));
    o.path = "no/such/helm";
    assert_int_equal(helm_open(&o, &h, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "no/such/helm"));
    /* /proc/self/exe is a program, /proc/self/cwd a directory. */
    o.path = "cwd";
    assert_int_equal(helm_open(&o, &h, &err), ERR_INVALID);
    o.path = "exe";
    assert_int_equal(helm_open(&o, &h, &err), ERR_NONE);
    assert_string_equal(helm_path(h), "/proc/self/exe");
    helm_close(h);
    fake_release(&f);
    assert_int_equal(setenv("PATH", old, 1), 0);
}

static struct hr_spec spec_web(void)
{
    return (struct hr_spec){.release_name = (char *)"web",
                            .target_ns = (char *)"shop",
                            .chart_name = (char *)"podinfo",
                            .timeout_s = 5,
                            .reset_values = true,
                            .max_history = 10};
}

struct hook_log {
    struct fake *fake;
    struct buf calls;
};

static void note_child(void *ctx, struct child *child)
{
    struct hook_log *log = ctx;
    assert_true(child == NULL || child == &log->fake->child);
    buf_addf(&log->calls, "%s at %d freed;", child != NULL ? "child" : "none", log->fake->freed);
}

static void helm_gets_an_environment_built_from_nothing(void **state)
{
    (void)state;
    assert_int_equal(setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1), 0);
    assert_int_equal(setenv("HELM_NAMESPACE", "kube-system", 1), 0);
    assert_int_equal(setenv("https_proxy", "http://proxy", 1), 0);
    struct fake f;
    fake_init(&f);
    struct helm *h = open_fake(&f);
    struct hr_spec spec = spec_web();
    struct hook_log log = {.fake = &f, .calls = BUF_INIT(256)};
    struct helm_run_options o = {
        .args = {.verb = HELM_UPGRADE_INSTALL, .spec = &spec, .chart_path = "/c.tgz"},
        .kubeconfig = "/run/kc",
        .values = "{\"a\":1}tail",
        .values_len = 7,
        .on_child = note_child,
        .ctx = &log,
    };
    struct helm_result r;
    struct err err = ERR_INIT;
    assert_int_equal(helm_run(h, &o, &r, &err), ERR_NONE);
    assert_string_equal(r.message, "");
    assert_false(r.interrupted || r.timed_out);
    assert_string_equal(buf_str(&f.input), "{\"a\":1}");
    assert_string_equal(
        buf_str(&f.argv),
        "/opt/h/helm|upgrade|--install|--namespace|shop|-f|-|--timeout|5s|--reset-values|"
        "--history-max|10|--|web|/c.tgz|");
    assert_string_equal(
        buf_str(&f.envp),
        "PATH=/opt/h:/usr/bin:/bin|HOME=/var/h|TMPDIR=/var/h|XDG_CACHE_HOME=/var/h/.cache|"
        "XDG_CONFIG_HOME=/var/h/.config|XDG_DATA_HOME=/var/h/.local/"
        "share|HELM_DRIVER=secret|KUBECONFIG=/run/kc|");
    assert_string_equal(buf_str(&log.calls), "child at 0 freed;none at 0 freed;");
    assert_int_equal(f.freed, 1);
    helm_result_release(&r);
    buf_release(&log.calls);
    helm_close(h);
    fake_release(&f);
    assert_int_equal(unsetenv("KUBERNETES_SERVICE_HOST") + unsetenv("HELM_NAMESPACE") +
                         unsetenv("https_proxy"),
                     0);
}

static const struct {
    const char *name, *out, *err;
    int exit_code, signal;
    bool timed_out;
    const char *want;
    bool interrupted;
    int code;
} end_rows[] = {
    {"a reason", NULL, "Error: UPGRADE FAILED: bad s3cr3t in \"web\"\n", 1, 0, false,
     "bad [redacted] in \"web\"", false, 1},
    {"no reason", NULL, "", 7, 0, false, "helm ended with status 7 and gave no reason", false, 7},
    {"deadline", NULL, "Error: half", 0, 0, true, "helm did not end within 0 s and was killed",
     false, 0},
    {"SIGINT, nothing said (rollback, uninstall)", NULL, "", 0, SIGINT, false,
     "helm was ended by signal 2", true, 0},
    {"SIGTERM", NULL, "", 0, SIGTERM, false, "helm was ended by signal 15", true, 0},
    {"SIGKILL is no interruption", NULL, "", 0, SIGKILL, false,
     "helm was ended by signal 9 (out of memory, if nobody killed it)", false, 0},
    {"SIGSEGV", NULL, "", 0, SIGSEGV, false, "helm was ended by signal 11", false, 0},
    {"SIGINT, as install and upgrade end", "Release web has been cancelled.\n",
     "Error: UPGRADE FAILED: context canceled\n", 1, 0, false, "context canceled", true, 1},
    {"told on stdout alone", "Release web has been cancelled.\n", "Error: x\n", 1, 0, false, "x",
     true, 1},
    {"of another release", "Release w has been cancelled.\n", "Error: x\n", 1, 0, false, "x", false,
     1},
};

static void a_failed_run_tells_why_and_whether_it_was_stopped(void **state)
{
    (void)state;
    struct fake f;
    fake_init(&f);
    struct helm *h = open_fake(&f);
    struct hr_spec spec = spec_web();
    _cleanup_json_ json_t *secrets = parse("[\"s3cr3t\"]");
    for (size_t i = 0; i < sizeof(end_rows) / sizeof(end_rows[0]); i++) {
        f.out = end_rows[i].out;
        f.err = end_rows[i].err;
        f.exit_code = end_rows[i].exit_code;
        f.signal = end_rows[i].signal;
        f.timed_out = end_rows[i].timed_out;
        struct helm_run_options o = {.args = {.verb = HELM_UNINSTALL, .spec = &spec},
                                     .kubeconfig = "/run/kc",
                                     .redact = secrets};
        struct helm_result r;
        struct err err = ERR_INIT;
        assert_int_equal(helm_run(h, &o, &r, &err), ERR_HELM_FAILED);
        if (strcmp(r.message, end_rows[i].want) != 0 || r.interrupted != end_rows[i].interrupted ||
            r.timed_out != end_rows[i].timed_out || strcmp(err.msg, r.message) != 0 ||
            err.code != end_rows[i].code) {
            fail_msg("%s: %s (interrupted %d, timed out %d, code %d)", end_rows[i].name, r.message,
                     r.interrupted, r.timed_out, err.code);
        }
        helm_result_release(&r);
    }
    helm_close(h);
    fake_release(&f);
}

static void a_child_that_cannot_be_run_is_another_error(void **state)
{
    (void)state;
    struct fake f;
    fake_init(&f);
    struct helm *h = open_fake(&f);
    struct hr_spec spec = spec_web();
    struct hook_log log = {.fake = &f, .calls = BUF_INIT(256)};
    struct helm_run_options o = {.args = {.verb = HELM_UNINSTALL, .spec = &spec},
                                 .kubeconfig = "/run/kc",
                                 .on_child = note_child,
                                 .ctx = &log};
    struct helm_result r = {.message = (char *)"untouched"};
    struct err err = ERR_INIT;
    f.start_fails = ERR_UNAVAILABLE;
    assert_int_equal(helm_run(h, &o, &r, &err), ERR_UNAVAILABLE);
    assert_string_equal(buf_str(&log.calls), "");
    f.start_fails = ERR_NONE;
    f.wait_fails = ERR_BUG;
    assert_int_equal(helm_run(h, &o, &r, &err), ERR_BUG);
    /* Whoever was told of the child is told of its end, too. */
    assert_string_equal(buf_str(&log.calls), "child at 0 freed;none at 0 freed;");
    assert_int_equal(f.freed, 1);
    assert_string_equal(r.message, "untouched");
    buf_release(&log.calls);
    helm_close(h);
    fake_release(&f);
}

/* ---- real processes ---- */

/* A directory for one test, with a kubeconfig whose server nobody can be. */
struct home {
    char dir[64];
    char kubeconfig[96];
};

static void write_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
}

static void home_init(struct home *h)
{
    strncpy(h->dir, "/tmp/helm_test.XXXXXX", sizeof(h->dir) - 1);
    assert_non_null(mkdtemp(h->dir));
    snprintf(h->kubeconfig, sizeof(h->kubeconfig), "%s/kubeconfig", h->dir);
    write_file(h->kubeconfig,
               "{\"apiVersion\":\"v1\",\"kind\":\"Config\",\"current-context\":\"c\","
               "\"clusters\":[{\"name\":\"c\",\"cluster\":{\"server\":\"http://127.0.0.1:1\"}}],"
               "\"contexts\":[{\"name\":\"c\",\"context\":{\"cluster\":\"c\",\"user\":\"u\"}}],"
               "\"users\":[{\"name\":\"u\",\"user\":{\"as\":\"belay\"}}]}",
               0600);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void home_release(struct home *h)
{
    assert_int_equal(nftw(h->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static struct helm *open_real(const struct home *home, const char *path)
{
    struct helm_options o = {
        .proc = proc_posix(), .clock = clock_os(), .path = path, .home_dir = home->dir};
    struct helm *h = NULL;
    struct err err = ERR_INIT;
    if (helm_open(&o, &h, &err) != ERR_NONE) {
        fail_msg("%s", err.msg);
    }
    return h;
}

/* The run must fail; its deadline only ends a test that hangs. */
static struct helm_result run_real(struct helm *h, const struct home *home,
                                   const struct helm_run_options *options)
{
    struct helm_run_options o = *options;
    o.kubeconfig = home->kubeconfig;
    o.deadline = mono_add_ms(clock_mono(clock_os()), 60000);
    struct helm_result r;
    struct err err = ERR_INIT;
    if (helm_run(h, &o, &r, &err) != ERR_HELM_FAILED) {
        fail_msg("%s %s", err_kind_name(err.kind), err.msg);
    }
    return r;
}

static void interrupt_child(void *ctx, struct child *child)
{
    (void)ctx;
    if (child != NULL) {
        proc_signal(proc_posix(), child, SIGINT);
    }
}

static void a_child_gets_its_values_and_can_be_interrupted(void **state)
{
    (void)state;
    struct home home;
    home_init(&home);
    _cleanup_(free_cstr)
    char *script = xasprintf("%s/helm", home.dir);
    write_file(
        script,
        "#!/bin/sh\n"
        "case \"$1\" in\n"
        "version) echo v4.9.9;;\n"
        "upgrade) echo \"Error: $(cat) $HELM_DRIVER $# $KUBERNETES_SERVICE_HOST\" >&2; exit 3;;\n"
        "*) exec sleep 100;;\n"
        "esac\n",
        0700);
    struct helm *h = open_real(&home, script);
    assert_int_equal(helm_major(h), 4);
    struct hr_spec spec = spec_web();

    assert_int_equal(setenv("KUBERNETES_SERVICE_HOST", "leaked", 1), 0);
    struct helm_run_options upgrade = {
        .args = {.verb = HELM_UPGRADE_INSTALL, .spec = &spec, .chart_path = "/c.tgz"},
        .values = "{\"a\":\"b\"}",
        .values_len = 9};
    struct helm_result r = run_real(h, &home, &upgrade);
    assert_int_equal(unsetenv("KUBERNETES_SERVICE_HOST"), 0);
    assert_string_equal(r.message, "{\"a\":\"b\"} secret 15");
    assert_false(r.interrupted);
    helm_result_release(&r);

    struct helm_run_options rollback = {.args = {.verb = HELM_ROLLBACK, .spec = &spec},
                                        .on_child = interrupt_child};
    r = run_real(h, &home, &rollback);
    assert_true(r.interrupted);
    assert_false(r.timed_out);
    helm_result_release(&r);
    helm_close(h);
    home_release(&home);
}

static const struct {
    const char *name;
    enum helm_verb verb;
    bool full, first;
    int64_t revision;
} real_rows[] = {
    {"upgrade", HELM_UPGRADE_INSTALL, false, false, 0},
    {"upgrade, full", HELM_UPGRADE_INSTALL, true, false, 0},
    {"install, full", HELM_UPGRADE_INSTALL, true, true, 0},
    {"rollback", HELM_ROLLBACK, false, false, 0},
    {"rollback, full", HELM_ROLLBACK, true, false, 7},
    {"uninstall", HELM_UNINSTALL, false, false, 0},
    {"uninstall, full", HELM_UNINSTALL, true, false, 0},
    {"test", HELM_TEST, false, false, 0},
};

/* A flag that it does not know ends helm before it looks for a cluster: so it must say that it
 * looked. */
static void check_real(const char *path, int major)
{
    struct home home;
    home_init(&home);
    struct helm *h = open_real(&home, path);
    assert_int_equal(helm_major(h), major);
    for (size_t i = 0; i < sizeof(real_rows) / sizeof(real_rows[0]); i++) {
        struct hr_spec spec = spec_web();
        bool full = real_rows[i].full;
        spec.wait = spec.force_upgrade = spec.skip_crds = spec.disable_openapi_validation = full;
        spec.rollback.wait = spec.rollback.recreate = spec.rollback.disable_hooks =
            spec.rollback.force = full;
        spec.reset_values = !full;
        struct helm_run_options o = {.args = {.verb = real_rows[i].verb,
                                              .spec = &spec,
                                              .chart_path = "/no/such.tgz",
                                              .description = full ? "belay x=1" : NULL,
                                              .revision = real_rows[i].revision,
                                              .first_install = real_rows[i].first,
                                              .no_hooks = full,
                                              .keep_history = full}};
        struct helm_result r = run_real(h, &home, &o);
        if (strstr(r.message, "luster unreachable: Get \"http://127.0.0.1:1/") == NULL) {
            fail_msg("helm %d, %s: %s", major, real_rows[i].name, r.message);
        }
        helm_result_release(&r);
    }
    helm_close(h);
    home_release(&home);
}

static void check_or_skip(const char *variable, const char *usual, int major)
{
    const char *path = getenv(variable);
    path = path != NULL ? path : usual;
    if (access(path, X_OK) != 0) {
        skip();
    }
    check_real(path, major);
}

static void helm_3_knows_every_flag(void **state)
{
    (void)state;
    check_or_skip("HELM3", "build/bin/helm3", 3);
}

static void helm_4_knows_every_flag(void **state)
{
    (void)state;
    check_or_skip("HELM4", "build/bin/helm4", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(secrets_leave_the_text_and_the_rest_stays),
        cmocka_unit_test(a_secret_is_found_wherever_the_text_is_cut),
        cmocka_unit_test(nothing_is_shown_of_a_tree_that_is_too_deep),
        cmocka_unit_test(long_secrets_of_one_letter_end_in_time),
        cmocka_unit_test(helms_last_words_become_one_line),
        cmocka_unit_test(a_message_of_any_length_is_cut_at_a_character),
        cmocka_unit_test(open_reads_the_version_and_takes_3_and_4),
        cmocka_unit_test(open_says_where_it_looked),
        cmocka_unit_test(helm_gets_an_environment_built_from_nothing),
        cmocka_unit_test(a_failed_run_tells_why_and_whether_it_was_stopped),
        cmocka_unit_test(a_child_that_cannot_be_run_is_another_error),
        cmocka_unit_test(a_child_gets_its_values_and_can_be_interrupted),
        cmocka_unit_test(helm_3_knows_every_flag),
        cmocka_unit_test(helm_4_knows_every_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
