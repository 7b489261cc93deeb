// Just enough JSON to find the fields of a message, and a buffer that grows.
// Nothing is decoded: a value is the slice of text it stands in.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *at;
    size_t len;
} slice;

static const slice nothing = {0, 0};

static const char *skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static const char *skip_string(const char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\') p++;
    return p + 1;
}

static const char *skip_value(const char *p, const char *end) {
    p = skip_space(p, end);
    if (p >= end) return end;
    if (*p == '"') return skip_string(p, end);
    if (*p != '{' && *p != '[') {
        while (p < end && !strchr(",}] \n\r\t", *p)) p++;
        return p;
    }
    int depth = 0;
    while (p < end) {
        if (*p == '"') {
            p = skip_string(p, end);
            continue;
        }
        if (*p == '{' || *p == '[') depth++;
        if ((*p == '}' || *p == ']') && --depth == 0) return p + 1;
        p++;
    }
    return end;
}

// The raw value of a member of an object, or nothing.
static slice member(slice object, const char *key) {
    const char *end = object.at + object.len;
    const char *p = skip_space(object.at, end);
    size_t key_len = strlen(key);
    if (p >= end || *p != '{') return nothing;
    for (p++;;) {
        p = skip_space(p, end);
        if (p < end && *p == ',') {
            p++;
            continue;
        }
        if (p >= end || *p != '"') return nothing;
        const char *name = p + 1;
        p = skip_string(p, end);
        size_t name_len = p - 1 - name;
        p = skip_space(p, end);
        if (p < end && *p == ':') p++;
        const char *value = skip_space(p, end);
        p = skip_value(value, end);
        if (name_len == key_len && !memcmp(name, key, key_len))
            return (slice){value, p - value};
    }
}

// The raw first element of an array, or nothing.
static slice first(slice array) {
    const char *end = array.at + array.len;
    const char *p = skip_space(array.at, end);
    if (p >= end || *p != '[') return nothing;
    p = skip_space(p + 1, end);
    return p >= end || *p == ']' ? nothing : (slice){p, skip_value(p, end) - p};
}

static int is_string(slice value, const char *text) {
    size_t len = strlen(text);
    return value.len == len + 2 && value.at[0] == '"' && !memcmp(value.at + 1, text, len);
}

static int contains(slice value, const char *text) {
    return value.len && memmem(value.at, value.len, text, strlen(text)) != 0;
}

typedef struct {
    char *bytes;
    size_t len, cap, sent;
} buffer;

static void add(buffer *b, const char *bytes, size_t len) {
    if (b->len + len > b->cap) {
        b->cap = (b->len + len) * 2;
        b->bytes = realloc(b->bytes, b->cap);
    }
    memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
}

static void add_text(buffer *b, const char *text) { add(b, text, strlen(text)); }
