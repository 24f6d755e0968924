// dump_logits MODEL WINDOW THREADS FLASH_ATTENTION(0|1) KV(f16|f32|q8_0) < tokens (int32) > logits (float32)
//
// llama.cpp's raw logits at every position, row after row. The tokens are cut into windows of WINDOW; each starts from an
// empty cache and, where the model asks for one, with a BOS token in front, whose row is left out. A window is one batch.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llama.h"

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "dump_logits: %s\n", what);
  std::exit(1);
}

std::vector<llama_token> read_tokens(int32_t vocab) {
  std::vector<llama_token> tokens;
  for (llama_token token; std::fread(&token, sizeof token, 1, stdin) == 1;) {
    if (token < 0 || token >= vocab) fail("a token is outside the vocabulary");
    tokens.push_back(token);
  }
  return tokens;
}

ggml_type cache_type(const std::string& name) {
  for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q8_0})
    if (name == ggml_type_name(type)) return type;
  fail("KV must be f16, f32 or q8_0");
}

llama_context* make_context(llama_model* model, int32_t window, int32_t threads, bool flash, ggml_type kv) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = window;
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = threads;
  params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = kv;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) fail("the context cannot be made");
  return context;
}

// Computes one window and writes the logits of all its positions but the first `skip`.
void dump(llama_context* context, const std::vector<llama_token>& tokens, int32_t skip, int32_t vocab) {
  llama_memory_clear(llama_get_memory(context), true);
  const int32_t count = static_cast<int32_t>(tokens.size());
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int32_t i = 0; i < count; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  if (llama_decode(context, batch)) fail("llama_decode failed");
  for (int32_t i = skip; i < count; ++i)
    if (std::fwrite(llama_get_logits_ith(context, i), sizeof(float), vocab, stdout) != size_t(vocab)) fail("cannot write");
  llama_batch_free(batch);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) fail("usage: dump_logits MODEL WINDOW THREADS FLASH_ATTENTION(0|1) KV(f16|f32|q8_0) < tokens > logits");
  const int32_t window = std::atoi(argv[2]), threads = std::atoi(argv[3]);
  if (window < 1 || threads < 1) fail("WINDOW and THREADS must be at least 1");
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  llama_model* model = llama_model_load_from_file(argv[1], params);
  if (!model) fail("the model cannot be loaded");
  const llama_vocab* words = llama_model_get_vocab(model);
  const int32_t vocab = llama_vocab_n_tokens(words), skip = llama_vocab_get_add_bos(words) ? 1 : 0;
  llama_context* context = make_context(model, window + skip, threads, argv[4][0] == '1', cache_type(argv[5]));

  const std::vector<llama_token> tokens = read_tokens(vocab);
  for (size_t begin = 0; begin < tokens.size(); begin += window) {
    const size_t end = std::min(tokens.size(), begin + window);
    std::vector<llama_token> part(skip, llama_vocab_bos(words));
    part.insert(part.end(), tokens.begin() + begin, tokens.begin() + end);
    dump(context, part, skip, vocab);
  }
  llama_free(context);
  llama_model_free(model);
}
