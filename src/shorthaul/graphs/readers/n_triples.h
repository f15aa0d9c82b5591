// One line of N-Triples (RDF 1.1) -> three terms.
//
// A term is kept in one form however it was written: an IRI without its brackets, a blank node as it
// stands, a literal in its quotes; \u00E9 is the same as é. Within a literal only quotes, backslashes
// and line ends stay escaped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shorthaul::n_triples {

// What is wrong with a line; n_triples.py has the words for each, in this order.
enum Problem : int64_t {
  none = 0,
  expected_subject,
  expected_predicate,
  expected_object,
  expected_full_stop,
  something_after,
  open_iri,
  bad_iri_character,
  bad_escape,
  open_literal,
  bad_language,
  bad_datatype,
  bad_blank_node,
};

struct Term {
  std::string_view text;
  bool is_literal = false;
};

class LineParser {
 public:
  // The line without its end. True when it holds a triple; false for a blank line, a comment, or a
  // problem, which `problem` and `column` (from 1) then tell.
  bool parse(std::string_view line) {
    start_ = at_ = line.data();
    end_ = at_ + line.size();
    problem = none;
    skip_space();
    if (at_ == end_ || *at_ == '#') return false;
    const bool is_triple = read_resource(subject, 0, expected_subject) && skip_space() &&
                           read_iri(predicate, 1, expected_predicate) && skip_space() && read_object();
    if (!is_triple) return false;
    skip_space();
    if (at_ == end_ || *at_ != '.') return fail(expected_full_stop);
    ++at_;
    skip_space();
    return at_ == end_ || *at_ == '#' || fail(something_after);
  }

  Term subject, predicate, object;
  Problem problem = none;
  int64_t column() const { return at_ - start_ + 1; }

 private:
  bool fail(Problem what) {
    problem = what;
    return false;
  }

  bool skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t')) ++at_;
    return true;
  }

  bool read_resource(Term& term, int slot, Problem otherwise) {
    if (at_ < end_ && *at_ == '_') return read_blank_node(term);
    return read_iri(term, slot, otherwise);
  }

  bool read_object() {
    if (at_ < end_ && *at_ == '"') return read_literal();
    return read_resource(object, 2, expected_object);
  }

  bool read_iri(Term& term, int slot, Problem otherwise) {
    if (at_ == end_ || *at_ != '<') return fail(otherwise);
    const char* const begin = ++at_;
    term.is_literal = false;
    while (at_ < end_ && is_iri_character(*at_)) ++at_;
    if (at_ < end_ && *at_ == '>') {  // as nearly all are: nothing to resolve
      term.text = std::string_view(begin, static_cast<size_t>(at_++ - begin));
      return true;
    }
    std::string& resolved = resolved_[slot];
    resolved.assign(begin, at_);
    while (at_ < end_ && *at_ != '>') {
      if (*at_ == '\\') {
        if (!read_code_point(resolved)) return false;
      } else if (is_iri_character(*at_)) {
        resolved.push_back(*at_++);
      } else {
        return fail(bad_iri_character);
      }
    }
    if (at_ == end_) return fail(open_iri);
    ++at_;
    term.text = resolved;
    return true;
  }

  bool read_blank_node(Term& term) {
    const char* const begin = at_;
    if (end_ - at_ < 3 || at_[1] != ':' || !is_label_start(at_[2])) return fail(bad_blank_node);
    at_ += 3;
    while (at_ < end_ && (is_label_start(*at_) || *at_ == '-' || *at_ == '.')) ++at_;
    while (at_[-1] == '.') --at_;  // a full stop after a label ends the triple
    term = Term{std::string_view(begin, static_cast<size_t>(at_ - begin)), false};
    return true;
  }

  bool read_literal() {
    const char* const begin = at_++;
    while (at_ < end_ && *at_ != '"' && *at_ != '\\') ++at_;
    if (at_ < end_ && *at_ == '"') {
      ++at_;
      if (!read_suffix()) return false;
      object = Term{std::string_view(begin, static_cast<size_t>(at_ - begin)), true};
      return true;
    }
    std::string& resolved = resolved_[2];
    resolved.assign(begin, at_);
    while (at_ < end_ && *at_ != '"') {
      if (*at_ != '\\') {
        resolved.push_back(*at_++);
      } else if (!read_escape(resolved)) {
        return false;
      }
    }
    if (at_ == end_) return fail(open_literal);
    const char* const suffix = at_++;
    if (!read_suffix()) return false;
    resolved.append(suffix, at_);
    object = Term{resolved, true};
    return true;
  }

  // @language or ^^<datatype> after the closing quote.
  bool read_suffix() {
    if (at_ < end_ && *at_ == '@') {
      ++at_;
      if (!skip_part(false)) return fail(bad_language);
      while (at_ < end_ && *at_ == '-') {
        ++at_;
        if (!skip_part(true)) return fail(bad_language);
      }
      return true;
    }
    if (at_ < end_ && *at_ == '^') {
      if (end_ - at_ < 3 || at_[1] != '^') return fail(bad_datatype);
      at_ += 2;
      Term datatype;
      return read_iri(datatype, 3, bad_datatype);
    }
    return true;
  }

  // One part of a language: letters, after the first part also digits, at least one.
  bool skip_part(bool allows_digits) {
    const char* const begin = at_;
    while (at_ < end_ && (is_letter(*at_) || (allows_digits && *at_ >= '0' && *at_ <= '9'))) ++at_;
    return at_ > begin;
  }

  // At a backslash in a literal. What the canonical form escapes stays escaped.
  bool read_escape(std::string& out) {
    if (end_ - at_ < 2) return fail(bad_escape);
    switch (at_[1]) {
      case 't': out.push_back('\t'); break;
      case 'b': out.push_back('\b'); break;
      case 'f': out.push_back('\f'); break;
      case '\'': out.push_back('\''); break;
      case 'n': out.append("\\n"); break;
      case 'r': out.append("\\r"); break;
      case '"': out.append("\\\""); break;
      case '\\': out.append("\\\\"); break;
      default: return read_code_point(out);
    }
    at_ += 2;
    return true;
  }

  // At a backslash: \uXXXX or \UXXXXXXXX becomes UTF-8.
  bool read_code_point(std::string& out) {
    if (end_ - at_ < 2 || (at_[1] != 'u' && at_[1] != 'U')) return fail(bad_escape);
    const int digits = at_[1] == 'u' ? 4 : 8;
    if (end_ - at_ < 2 + digits) return fail(bad_escape);
    uint32_t code = 0;
    for (int n = 0; n < digits; ++n) {
      const char digit = at_[2 + n];
      const char lower = static_cast<char>(digit | 0x20);
      if (digit >= '0' && digit <= '9') code = code * 16 + static_cast<uint32_t>(digit - '0');
      else if (lower >= 'a' && lower <= 'f') code = code * 16 + static_cast<uint32_t>(lower - 'a' + 10);
      else return fail(bad_escape);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return fail(bad_escape);
    at_ += 2 + digits;
    if (code == '\n') out.append("\\n");
    else if (code == '\r') out.append("\\r");
    else if (code == '"') out.append("\\\"");
    else if (code == '\\') out.append("\\\\");
    else append_utf8(code, out);
    return true;
  }

  static void append_utf8(uint32_t code, std::string& out) {
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static constexpr uint32_t leads[] = {0, 0xC0, 0xE0, 0xF0};
    out.push_back(static_cast<char>(leads[more] | (code >> (6 * more))));
    for (int n = more - 1; n >= 0; --n) out.push_back(static_cast<char>(0x80 | ((code >> (6 * n)) & 0x3F)));
  }

  static bool is_letter(char each) { return (each | 0x20) >= 'a' && (each | 0x20) <= 'z'; }

  static bool is_label_start(char each) {
    return is_letter(each) || (each >= '0' && each <= '9') || each == '_' || each == ':' ||
           static_cast<unsigned char>(each) >= 0x80;
  }

  static bool is_iri_character(char each) {
    const unsigned char value = static_cast<unsigned char>(each);
    return value > 0x20 && each != '<' && each != '>' && each != '"' && each != '{' && each != '}' &&
           each != '|' && each != '^' && each != '`' && each != '\\';
  }

  const char *start_ = nullptr, *at_ = nullptr, *end_ = nullptr;
  std::string resolved_[4];  // subject, predicate, object, datatype
};

}  // namespace shorthaul::n_triples
