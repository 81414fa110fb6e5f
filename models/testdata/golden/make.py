import json, os, sys, torch, glob, subprocess
from transformers import AutoModelForCausalLM, AutoTokenizer
from safetensors.torch import save_file
out=os.environ["OUT"]
probs=[json.loads(l) for l in open("models/eval/problems.jsonl")][:10]
print(subprocess.run("nvidia-smi -L; ls -d /usr/local/cuda*; ldconfig -p | grep -E 'nvrtc|cublasLt|libcuda.so|nvidia-ml'; find / -name 'libnvrtc.so*' -not -path '/proc/*' 2>/dev/null; find / -name 'libcublasLt.so*' -not -path '/proc/*' 2>/dev/null; which compute-sanitizer ncu; nproc; uname -r; ldd --version | head -1",shell=True,capture_output=True,text=True).stdout)
for m in "sml":
    d=f"models/tiny-{m}"
    tok=AutoTokenizer.from_pretrained(d)
    model=AutoModelForCausalLM.from_pretrained(d,dtype=torch.float32).eval()
    texts=[]; tensors={}
    for i,p in enumerate(probs):
        enc=tok.apply_chat_template([{"role":"user","content":p["question"]}],add_generation_prompt=True,return_tensors="pt",return_dict=True)
        ids=enc["input_ids"]
        g=model.generate(ids,max_new_tokens=300,do_sample=False)
        texts.append({"question":p["question"],"prompt_ids":ids[0].tolist(),"output_ids":g[0,ids.shape[1]:].tolist(),"text":tok.decode(g[0,ids.shape[1]:])})
        if i<2:
            full=g[:, :96]
            with torch.no_grad(): o=model(full,output_hidden_states=True)
            tensors[f"ids{i}"]=full[0].to(torch.int32).contiguous()
            tensors[f"logits{i}"]=o.logits[0,:,:749].float().contiguous()
            if i==0:
                for l,h in enumerate(o.hidden_states): tensors[f"hidden{i}.{l}"]=h[0,::8].float().contiguous()
    save_file(tensors,f"{out}/tiny-{m}.golden.safetensors")
    json.dump(texts,open(f"{out}/tiny-{m}.greedy.json","w"),ensure_ascii=False,indent=1)
    print(m,len(texts),sum(len(t["output_ids"]) for t in texts),texts[0]["text"][:200])
