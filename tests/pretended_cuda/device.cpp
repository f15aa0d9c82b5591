// CUDA devices that are not there: their memory is the host's, and the CPU computes for them.
//
// Every operator that has a CUDA tensor among its arguments comes to one fallback. It sees to it that all
// of them are on one device, as CUDA does, lets the CPU's kernel work on the same memory, and hands the
// results out as tensors of that device. Each thread has a current device, which starts at 0.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr int kDevices = 2;
thread_local int current_device = 0;
thread_local int64_t current_stream[kDevices] = {0, 0};
int64_t streams_made = 0;

struct PretendedGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(c10::DeviceType::CUDA, current_device);
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(current_device)}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream[device.index()]);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, ++streams_made);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_stream[stream.device().index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, PretendedGuard);

}  // namespace

// Loaded before PyTorch, these stand before its own, which know what it was built for.
namespace at::accelerator {
std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::CUDA; }
bool isAccelerator(c10::DeviceType type) { return type == c10::DeviceType::CUDA; }
}  // namespace at::accelerator

struct PretendedHooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(::current_device); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
};

namespace at::detail {
const CUDAHooksInterface& getCUDAHooks() {
  static PretendedHooks hooks;
  return hooks;
}
}  // namespace at::detail

namespace {

// A storage of the other device over the same memory, which it keeps.
c10::Storage share(const c10::Storage& storage, c10::Device device) {
  auto* kept = new c10::Storage(storage);
  c10::DataPtr pointer(
      storage.mutable_data(), kept, [](void* each) { delete static_cast<c10::Storage*>(each); }, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer), nullptr, false);
}

// CPU memory that can grow, for results whose size is found by the operator.
at::Tensor view_as(const at::Tensor& tensor, c10::Storage storage, c10::Device device) {
  c10::DispatchKeySet keys(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

struct Moved {
  at::Tensor device;
  at::Tensor host;
};

struct Call {
  std::vector<Moved> moved;
  c10::optional<c10::Device> device;
  bool has_host_tensor = false;
  bool copies_between_devices = false;

  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      has_host_tensor |= tensor.dim() > 0 && tensor.device().is_cpu();
      return tensor;
    }
    if (device && *device != tensor.device() && !copies_between_devices) mixed(tensor.device());
    if (!device) device = tensor.device();  // of a copy: where it goes
    at::Tensor host;
    if (tensor.storage().nbytes() == 0) {
      auto* allocator = c10::GetAllocator(c10::DeviceType::CPU);
      host = view_as(tensor, c10::Storage(c10::Storage::use_byte_size_t(), 0, allocator->allocate(0), allocator, true), c10::kCPU);
    } else {
      host = view_as(tensor, share(tensor.storage(), c10::kCPU), c10::kCPU);
    }
    moved.push_back({tensor, host});
    return host;
  }

  void mixed(c10::Device other) const {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ", other, "!");
  }

  at::Tensor to_device(const at::Tensor& tensor, c10::Device target) {
    if (!tensor.defined() || tensor.is_cuda()) return tensor;
    for (const auto& each : moved) {
      if (each.host.is_same(tensor)) return each.device;
      if (each.host.storage().data() == tensor.storage().data() && tensor.storage().nbytes()) {
        return view_as(tensor, each.device.storage(), target);
      }
    }
    return view_as(tensor, share(tensor.storage(), target), target);
  }

  // What the operator resized in place.
  void update() {
    for (const auto& each : moved) {
      auto* implementation = each.device.unsafeGetTensorImpl();
      if (each.host.storage().data() != each.device.storage().data()) {
        implementation->set_storage_keep_dtype(share(each.host.storage(), each.device.device()));
      }
      if (each.host.sizes() != each.device.sizes() || each.host.strides() != each.device.strides() ||
          each.host.storage_offset() != each.device.storage_offset()) {
        implementation->set_sizes_and_strides(each.host.sizes(), each.host.strides(), each.host.storage_offset());
      }
    }
  }
};

// Operators that CUDA, too, gives tensors of both sides.
bool may_mix(const std::string& name) {
  return name == "aten::copy_" || name == "aten::_to_copy" || name == "aten::index.Tensor" || name == "aten::index" ||
         name == "aten::index_put_" || name == "aten::_index_put_impl_" || name == "aten::set_";
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  TORCH_CHECK(schema.operator_name().name.rfind("shorthaul::", 0) != 0,
              "Could not run '", schema.operator_name().name, "' with arguments from the 'CUDA' backend.");
  if (schema.operator_name().name == "aten::record_stream") {
    torch::jit::drop(*stack, schema.arguments().size());
    return;
  }
  Call call;
  call.copies_between_devices = schema.operator_name().name == "aten::copy_";
  c10::optional<c10::Device> asked;
  const auto count = schema.arguments().size();
  const auto first = stack->size() - count;
  for (size_t at = 0; at < count; ++at) {
    auto& value = (*stack)[first + at];
    if (value.isTensor()) {
      value = call.to_host(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorList()) list.push_back(call.to_host(each));
      value = list;
    } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
      auto given = value.toList();
      if (given.elementType()->isSubtypeOf(c10::OptionalType::ofTensor())) {
        c10::List<c10::optional<at::Tensor>> list;
        for (const c10::IValue& each : given) {
          list.push_back(each.isNone() ? c10::optional<at::Tensor>() : call.to_host(each.toTensor()));
        }
        value = list;
      }
    } else if (value.isDevice()) {
      asked = value.toDevice();
      if (asked->is_cuda()) value = c10::IValue(c10::Device(c10::kCPU));
    }
  }
  if (call.device && call.has_host_tensor && !may_mix(schema.operator_name().name)) call.mixed(c10::kCPU);
  auto target = asked ? *asked : call.device ? *call.device : c10::Device(c10::DeviceType::CUDA, current_device);
  if (target.is_cuda() && !target.has_index()) target = c10::Device(c10::DeviceType::CUDA, current_device);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.update();
  const auto results = schema.returns().size();
  for (size_t at = stack->size() - results; at < stack->size(); ++at) {
    auto& value = (*stack)[at];
    if (!target.is_cuda()) continue;
    if (value.isTensor()) {
      value = call.to_device(value.toTensor(), target);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorList()) list.push_back(call.to_device(each, target));
      value = list;
    }
  }
}

at::Scalar read_number(const at::Tensor& self) {
  Call call;
  const auto host = call.to_host(self);
  return host.item();
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "a tensor of ", self.device(), " cannot lie in storage of ", source.device());
  auto* implementation = self.unsafeGetTensorImpl();
  implementation->set_storage_keep_dtype(std::move(source));
  implementation->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

at::Tensor host_view(const at::Tensor& self) {
  Call call;
  return call.to_host(self);
}

at::Tensor device_view(const at::Tensor& self, int64_t device) {
  const c10::Device target(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
  return view_as(self, share(self.storage(), target), target);
}

}  // namespace

TORCH_LIBRARY(pretended, m) {
  m.def("host_view(Tensor self) -> Tensor");
  m.def("device_view(Tensor self, int device) -> Tensor");
}
TORCH_LIBRARY_IMPL(pretended, CUDA, m) { m.impl("host_view", &host_view); }
TORCH_LIBRARY_IMPL(pretended, CPU, m) { m.impl("device_view", &device_view); }
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_local_scalar_dense", &read_number);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  // Composite kernels that would ask for a kernel of the device on their way.
  for (const char* name : {"copy_", "convolution_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  }
}

extern "C" {
int pretended_current_device() { return current_device; }
void pretended_set_device(int device) { current_device = device; }
}
