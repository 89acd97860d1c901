// verbena doctor: checks this machine and the paths to other hosts, and reports what to change.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "runtime/config.h"
#include "tools/doctor/findings.h"
#include "tools/tool.h"

namespace verbena::tool {
namespace {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Good:
      return "ok";
    case Verdict::Hint:
      return "hint";
    case Verdict::Problem:
      return "problem";
  }
  return "";
}

bool has(const Findings& findings, Verdict verdict) {
  return std::ranges::find(findings, verdict, &Finding::verdict) != findings.end();
}

void append(Findings& to, Findings more) { std::ranges::move(more, std::back_inserter(to)); }

Findings examine_this_machine(const runtime::Discovery& found) {
  Findings all = examine_devices(found);
  Findings kernel = examine_kernel();
  // If the port is taken or BPF is stuck, opening a device would fail or never return.
  const bool can_open = !has(all, Verdict::Problem) && !has(kernel, Verdict::Problem);
  append(all, std::move(kernel));
  if (can_open) append(all, examine_firewall(found));
  return all;
}

struct Section {
  std::string name;
  Findings findings;
};

void print_section(const Section& section) {
  fmt::print("{}\n", section.name);
  for (const Finding& f : section.findings) {
    fmt::print("  {:<8} {:<16} {}\n", name_of(f.verdict), f.about, f.text);
  }
  fmt::print("\n");
}

std::string json_findings(const Findings& findings) {
  std::string text;
  for (const Finding& f : findings) {
    text +=
        fmt::format("{}{{\"verdict\":\"{}\",\"about\":{},\"text\":{}}}", text.empty() ? "" : ",",
                    name_of(f.verdict), json_string(f.about), json_string(f.text));
  }
  return "[" + text + "]";
}

void print_json(const std::vector<Section>& sections, bool well) {
  std::string hosts;
  for (size_t i = 1; i < sections.size(); ++i) {
    hosts += fmt::format("{}{{\"host\":{},\"findings\":{}}}", i == 1 ? "" : ",",
                         json_string(sections[i].name), json_findings(sections[i].findings));
  }
  fmt::print("{{\"ok\":{},\"machine\":{},\"hosts\":[{}]}}\n", well,
             json_findings(sections.front().findings), hosts);
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  const runtime::Discovery found = runtime::discover_devices(runtime::config().devices);
  std::vector<Section> sections;
  const auto add = [&](const std::string& name, Findings findings) {
    sections.push_back({name, std::move(findings)});
    if (!options.json) print_section(sections.back());
  };
  add("This machine", examine_this_machine(found));
  for (const std::string& host : options.hosts) add(host, examine_host(found, host));

  const bool well = std::ranges::none_of(
      sections, [](const Section& s) { return has(s.findings, Verdict::Problem); });
  if (options.json) {
    print_json(sections, well);
  } else {
    fmt::print("{}\n",
               well ? "Nothing has to be changed." : "Something has to be changed: see above.");
  }
  return well ? kDone : kNotThere;
}

}  // namespace verbena::tool
