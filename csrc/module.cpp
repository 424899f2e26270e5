// The Python module strata_gdn._C: importing it loads the ops (ops.cpp), its functions are the registry's for
// registry.py.
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030a0000
#endif
#include <Python.h>

#include <stdexcept>
#include <string>

#include "core/policy.h"
#include "core/switches.h"

namespace {

using namespace gdn;

// A Python exception is set: unwinds to the boundary, which returns nullptr.
struct PythonError {};

// Owns one reference.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {
    if (!object) throw PythonError{};
  }
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  Ref& operator=(Ref&&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

// The C++ function behind a Python one, with C++ exceptions turned into Python's.
template <Ref (*body)(PyObject* arguments)>
PyObject* python_function(PyObject*, PyObject* arguments) noexcept {
  try {
    return body(arguments).release();
  } catch (const PythonError&) {
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

Ref none() {
  Py_INCREF(Py_None);
  return Ref(Py_None);
}

Ref text(std::string_view value) {
  return Ref(PyUnicode_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size())));
}

Ref text_or_none(std::string_view value) { return value.empty() ? none() : text(value); }

template <class... Items>
Ref tuple(const Items&... items) {
  return Ref(PyTuple_Pack(sizeof...(items), items.get()...));
}

void append(const Ref& list, const Ref& item) {
  if (PyList_Append(list.get(), item.get()) != 0) throw PythonError{};
}

Ref new_list() { return Ref(PyList_New(0)); }

template <class... Targets>
void parse(PyObject* arguments, const char* format, Targets*... targets) {
  if (!PyArg_ParseTuple(arguments, format, targets...)) throw PythonError{};
}

std::string to_string(PyObject* object) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (!data) throw PythonError{};
  return std::string(data, static_cast<size_t>(size));
}

// A list of (name, value or None).
policy::Assignments to_assignments(PyObject* list) {
  policy::Assignments assignments;
  const Py_ssize_t count = PyList_Size(list);
  if (count < 0) throw PythonError{};
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = nullptr;
    PyObject* value = nullptr;
    parse(PyList_GetItem(list, i), "OO", &name, &value);
    policy::Assignment assignment{to_string(name), std::nullopt};
    if (value != Py_None) assignment.value = to_string(value);
    assignments.push_back(std::move(assignment));
  }
  return assignments;
}

// None: the process's switches; else exactly this environment.
policy::Overrides to_overrides(PyObject* env) {
  if (env == Py_None) return policy::current_overrides();
  return policy::parse_overrides(to_assignments(env), policy::Overrides{}, policy::Source::environment);
}

// "cpu" is the CPU that this process runs on.
policy::Device to_device(const std::string& arch, const policy::Overrides& overrides) {
  if (arch == "cpu") return policy::cpu_device(overrides);
  if (!policy::parse_arch(arch)) {
    throw std::invalid_argument("arch must be \"cpu\" or an architecture such as sm_86, gfx1151 or cpu-avx2; got '" +
                                arch + "'");
  }
  policy::Device device;
  device.arch = arch;
  return device;
}

// The value of `names` at `word`'s place, an enum in order.
template <class Enum, size_t count>
Enum to_enum(const char* argument, std::string_view word, const std::string_view (&names)[count]) {
  for (size_t i = 0; i < count; ++i) {
    if (word == names[i]) return static_cast<Enum>(i);
  }
  throw std::invalid_argument(std::string(argument) + " must be " +
                              policy::join_words({std::begin(names), std::end(names)}, "or") + "; got '" +
                              std::string(word) + "'");
}

constexpr std::string_view kDTypes[] = {"float32", "bfloat16", "float16"};
constexpr std::string_view kPrecisions[] = {"auto", "exact", "fp32", "fast"};

Ref switch_row(policy::Switch id, const policy::Overrides& overrides, const policy::Arch* arch) {
  const policy::SwitchInfo info = policy::info(id);
  const policy::Effective value = policy::effective(overrides, id, arch);
  const char* kind = info.kind == policy::Kind::runtime ? "runtime" : "build time";
  return tuple(text(info.name), text(info.allowed), text(kind), text(info.meaning), text_or_none(value.text),
               text(policy::name(value.source)));
}

Ref decide(PyObject* arguments) {
  const char* op = nullptr;
  const char* arch = nullptr;
  const char* dtype = nullptr;
  const char* precision = nullptr;
  int sms = 0;
  PyObject* env = nullptr;
  long long n = 0;
  long long tokens = 0;
  long long h = 0;
  long long hv = 0;
  long long k = 0;
  long long v = 0;
  long long width = 0;
  int tree = 0;
  parse(arguments, "ssisLLLLLLLspO", &op, &arch, &sms, &dtype, &tokens, &n, &h, &hv, &k, &v, &width, &precision, &tree,
        &env);
  policy::Request request;
  request.op = policy::parse_op(op);
  request.dtype = to_enum<DType>("dtype", dtype, kDTypes);
  request.precision = to_enum<policy::Precision>("precision", precision, kPrecisions);
  request.sequences = n;
  request.tokens = tokens;
  request.key_heads = h;
  request.value_heads = hv;
  request.key_dim = k;
  request.value_dim = v;
  request.conv_width = width;
  request.tree = tree != 0;

  const policy::Overrides overrides = to_overrides(env);
  policy::Device device = to_device(arch, overrides);
  device.sms = sms;
  std::vector<policy::Rejected> rejected;
  const policy::Decision decision = policy::decide(request, device, overrides, &rejected);

  const policy::Arch seen = policy::emulated(*policy::parse_arch(device.arch), overrides);
  const Ref config(PyDict_New());
  if (decision && seen.vendor == policy::Vendor::cpu) {
    const Ref isa = text(policy::kIsaNames[static_cast<size_t>(decision.isa)]);
    if (PyDict_SetItemString(config.get(), "isa", isa.get()) != 0) throw PythonError{};
  }
  for (const auto& [key, value] : {std::pair("heads", decision.heads), std::pair("columns", decision.columns)}) {
    if (value == 0) continue;
    const Ref number = text(std::to_string(value));
    if (PyDict_SetItemString(config.get(), key, number.get()) != 0) throw PythonError{};
  }
  for (const auto& [key, on] : {std::pair("pipelined", decision.pipelined), std::pair("batched", decision.batched)}) {
    if (on) continue;
    const Ref off = text("0");
    if (PyDict_SetItemString(config.get(), key, off.get()) != 0) throw PythonError{};
  }
  const Ref rejected_rows = new_list();
  for (const auto& r : rejected) append(rejected_rows, tuple(text(r.kernel), text(r.reason)));
  return tuple(text(decision.kernel), config, text(policy::explain(request, device, overrides, decision)),
               rejected_rows);
}

Ref switches(PyObject* arguments) {
  PyObject* arch_name = nullptr;
  PyObject* env = nullptr;
  parse(arguments, "OO", &arch_name, &env);
  const policy::Overrides overrides = to_overrides(env);
  std::optional<policy::Arch> arch;
  if (arch_name != Py_None) {
    const policy::Device device = to_device(to_string(arch_name), overrides);
    arch = policy::emulated(*policy::parse_arch(device.arch), overrides);
  }
  Ref rows = new_list();
  for (int32_t i = 0; i < policy::kSwitchCount; ++i) {
    append(rows, switch_row(static_cast<policy::Switch>(i), overrides, arch ? &*arch : nullptr));
  }
  return rows;
}

Ref switches_read(PyObject* arguments) {
  const char* op = nullptr;
  const char* arch_name = nullptr;
  PyObject* env = nullptr;
  parse(arguments, "ssO", &op, &arch_name, &env);
  const policy::Overrides overrides = to_overrides(env);
  const policy::Arch real = *policy::parse_arch(to_device(arch_name, overrides).arch);
  Ref names = new_list();
  for (policy::Switch id : policy::switches_read(policy::parse_op(op), policy::emulated(real, overrides))) {
    append(names, text(policy::name(id)));
  }
  return names;
}

Ref push_overrides(PyObject* arguments) {
  PyObject* changes = nullptr;
  parse(arguments, "O", &changes);
  return Ref(PyLong_FromLongLong(policy::push_overrides(to_assignments(changes))));
}

Ref pop_overrides(PyObject* arguments) {
  long long id = 0;
  parse(arguments, "L", &id);
  policy::pop_overrides(id);
  return none();
}

Ref reload(PyObject*) {
  policy::reload_environment();
  return none();
}

Ref served(PyObject*) {
  Ref counts(PyDict_New());
  for (const auto& [kernel, count] : policy::served()) {
    const Ref key = text(kernel);
    const Ref value(PyLong_FromLongLong(count));
    if (PyDict_SetItem(counts.get(), key.get(), value.get()) != 0) throw PythonError{};
  }
  return counts;
}

Ref reset_served(PyObject*) {
  policy::reset_served();
  return none();
}

Ref cpu_arch(PyObject*) { return text(policy::cpu_device(policy::current_overrides()).arch); }

Ref kernels(PyObject*) {
  Ref all = new_list();
  for (const policy::Row& row : policy::rows()) {
    append(all, tuple(text(row.kernel), text(policy::name(row.op)), text(row.architectures),
                      text(policy::name(row.lane)), text(row.measured)));
  }
  return all;
}

#ifndef GDN_CUDA_ARCH_LIST
#define GDN_CUDA_ARCH_LIST ""
#endif
#ifndef GDN_HIP_ARCH_LIST
#define GDN_HIP_ARCH_LIST ""
#endif

// (has CUDA kernels, their architectures, has ROCm kernels, their architectures)
Ref build_info(PyObject*) {
  return tuple(Ref(PyBool_FromLong(policy::built_with(policy::Vendor::cuda))), text(GDN_CUDA_ARCH_LIST),
               Ref(PyBool_FromLong(policy::built_with(policy::Vendor::hip))), text(GDN_HIP_ARCH_LIST));
}

// A warning that the user's filters turn into an error is thrown as one.
void warn_in_python(const std::string& sentence) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_WarnEx(PyExc_RuntimeWarning, ("strata_gdn: " + sentence).c_str(), 1) != 0;
  if (raised) PyErr_Clear();
  PyGILState_Release(state);
  if (raised) throw std::runtime_error(sentence);
}

PyMethodDef kMethods[] = {
    {"decide", python_function<decide>, METH_VARARGS, nullptr},
    {"switches", python_function<switches>, METH_VARARGS, nullptr},
    {"switches_read", python_function<switches_read>, METH_VARARGS, nullptr},
    {"push_overrides", python_function<push_overrides>, METH_VARARGS, nullptr},
    {"pop_overrides", python_function<pop_overrides>, METH_VARARGS, nullptr},
    {"reload", python_function<reload>, METH_NOARGS, nullptr},
    {"served", python_function<served>, METH_NOARGS, nullptr},
    {"reset_served", python_function<reset_served>, METH_NOARGS, nullptr},
    {"cpu_arch", python_function<cpu_arch>, METH_NOARGS, nullptr},
    {"kernels", python_function<kernels>, METH_NOARGS, nullptr},
    {"build_info", python_function<build_info>, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "_C",
                       "The registry's functions; strata_gdn.registry is their user's view.",
                       -1,
                       kMethods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  policy::set_warning_handler(warn_in_python);
  return PyModule_Create(&kModule);
}
