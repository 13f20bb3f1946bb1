//! Files of models that nobody has checked.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use serde_json::{Value, json};
use text_generation_images::{Detail, ImageSpec, Segment, Size, SpecError};

/// A `config.json` and a `preprocessor_config.json` of each kind.
fn files() -> Vec<(Value, Value)> {
    vec![
        (
            json!({"model_type": "llava", "vision_config": {"patch_size": 14}}),
            json!({"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}),
        ),
        (
            json!({"model_type": "llava_llama", "mm_vision_tower": "openai/clip-vit-large-patch14-336", "image_aspect_ratio": "anyres", "image_grid_pinpoints": [[336, 672], [672, 336]]}),
            json!({}),
        ),
        (
            json!({"model_type": "llava", "mm_vision_tower": "clip", "image_aspect_ratio": "pad", "vision_config": {"image_size": 336, "patch_size": 14}, "mm_vision_select_feature": "cls_patch"}),
            json!({}),
        ),
        (
            json!({"model_type": "mistral3", "spatial_merge_size": 2}),
            json!({"size": {"longest_edge": 1540}, "patch_size": 14}),
        ),
        (
            json!({"model_type": "qwen3_vl"}),
            json!({"min_pixels": 65536, "max_pixels": 16777216, "patch_size": 16, "merge_size": 2}),
        ),
        (
            json!({"model_type": "glm4v"}),
            json!({"size": {"shortest_edge": 12544, "longest_edge": 9633792}, "temporal_patch_size": 2}),
        ),
        (
            json!({"model_type": "gemma3", "mm_tokens_per_image": 256}),
            json!({"size": {"height": 896, "width": 896}, "resample": 2}),
        ),
        (
            json!({"model_type": "gemma4"}),
            json!({"max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3}),
        ),
        (
            json!({"model_type": "kimi_k25"}),
            json!({"size": {"max_height": 512}, "max_patches": 16384, "patch_size": 14, "merge_size": 2}),
        ),
        (
            json!({"model_type": "kimi_k25"}),
            json!({"media_proc_cfg": {"in_patch_limit": 16384, "patch_size": 14, "merge_kernel_size": 2, "patch_limit_on_one_side": 512, "fixed_output_tokens": null}}),
        ),
        (
            json!({"model_type": "kimi_vl"}),
            json!({"in_token_limit": 4096, "patch_size": 14, "merge_kernel_size": [2, 2], "pad_input": true}),
        ),
        (
            json!({"model_type": "llava_next", "vision_config": {"patch_size": 14}}),
            json!({"size": {"shortest_edge": 336}, "image_grid_pinpoints": [[336, 672], [672, 336]]}),
        ),
        (
            json!({"model_type": "llava_onevision", "vision_config": {"patch_size": 14}, "vision_aspect_ratio": "anyres_max_9"}),
            json!({"size": {"height": 384, "width": 384}, "image_mean": [0.5, 0.5, 0.5]}),
        ),
        (
            json!({"model_type": "internvl", "vision_config": {"patch_size": 14}, "downsample_ratio": 0.5}),
            json!({"size": {"height": 448, "width": 448}, "min_patches": 1, "max_patches": 12}),
        ),
        (
            json!({"model_type": "internvl_chat", "vision_config": {"patch_size": 14, "image_size": 448}, "downsample_ratio": 0.5, "force_image_size": 448, "dynamic_image_size": true, "use_thumbnail": true, "min_dynamic_patch": 1, "max_dynamic_patch": 12}),
            json!({"size": 448, "resample": 3}),
        ),
        (
            json!({"model_type": "llama4", "vision_config": {"patch_size": 14, "pixel_shuffle_ratio": 0.5}}),
            json!({"size": {"height": 336, "width": 336}, "max_patches": 16, "resize_to_max_canvas": false}),
        ),
        (
            json!({"model_type": "ovis2", "vision_config": {"patch_size": 14, "hidden_stride": 2}}),
            json!({"size": {"height": 448, "width": 448}, "max_patches": 9, "crop_to_patches": true}),
        ),
        (
            json!({"model_type": "aria", "vision_config": {"patch_size": 14}, "projector_patch_to_query_dict": {"4900": 256}}),
            json!({"max_image_size": 980, "min_image_size": 336, "split_image": false}),
        ),
        (
            json!({"model_type": "qwen", "visual": {"image_size": 448, "n_queries": 256}}),
            json!({}),
        ),
        (
            json!({"architectures": ["InternLMXComposer2ForCausalLM"], "img_size": 490, "vision_config": {"patch_size": 14}}),
            json!({}),
        ),
        (
            json!({"model_type": "minimax_m3_vl"}),
            json!({"size": [672, 672], "patch_size": 14, "merge_size": 2}),
        ),
        (
            json!({"model_type": "minicpmv", "query_num": 64}),
            json!({"max_slice_nums": 9, "scale_resolution": 448, "patch_size": 14, "image_feature_size": 64, "use_image_id": true, "slice_mode": true}),
        ),
        (
            json!({"model_type": "step3p7", "vision_config": {"patch_size": 14}}),
            json!({"size": {"height": 728, "width": 728}, "patch_size": 504, "max_image_size": 3024}),
        ),
        (
            json!({"model_type": "idefics3", "vision_config": {"patch_size": 14}, "scale_factor": 2}),
            json!({"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}),
        ),
    ]
}

/// Copies of `file` with every value in it replaced by something else.
fn spoilt(file: &Value) -> Vec<Value> {
    let others = [
        json!(null),
        json!(0),
        json!(1),
        json!(7),
        json!(65_536),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(-1),
        json!(0.3),
        json!("x"),
        json!([]),
        json!({}),
    ];
    places(file, "")
        .into_iter()
        .filter(|place| place != "/model_type")
        .flat_map(|place| {
            others.clone().map(|other| {
                let mut copy = file.clone();
                *copy.pointer_mut(&place).unwrap() = other;
                copy
            })
        })
        .collect()
}

fn places(value: &Value, at: &str) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), value))
            .collect(),
        Value::Array(all) => all
            .iter()
            .enumerate()
            .map(|(at, value)| (at.to_string(), value))
            .collect(),
        _ => Vec::new(),
    };
    let inner = inner.into_iter().flat_map(|(key, value)| {
        let place = format!("{at}/{key}");
        let deeper = places(value, &place);
        [place].into_iter().chain(deeper)
    });
    inner.collect()
}

fn try_all(spec: &ImageSpec) {
    spec.largest(25_000_000);
    for (height, width) in [
        (1, 1),
        (1, 30_000),
        (30_000, 3),
        (640, 480),
        (13, 2000),
        (1, 25_000_000),
    ] {
        for detail in [Detail::High, Detail::Low] {
            let Ok(plan) = spec.plan(Size { height, width }, detail) else {
                continue;
            };
            assert!(plan.rows() > 0 && !plan.views.is_empty(), "{spec:?}");
            for segment in &plan.segments {
                match segment {
                    Segment::Rows(_) | Segment::Number => {}
                    Segment::Token(name) => assert!(spec.tokens().any(|known| known == *name)),
                    Segment::Text(text) => assert!(spec.texts().any(|known| known == *text)),
                }
            }
        }
    }
}

#[test]
fn wrong_files_are_refused_or_served_and_nothing_else_happens() {
    for (config, preprocessor) in files() {
        try_all(
            &ImageSpec::read(&config, &preprocessor, None)
                .unwrap()
                .unwrap(),
        );
        let configs = spoilt(&config)
            .into_iter()
            .map(|config| (config, preprocessor.clone()));
        let others = spoilt(&preprocessor)
            .into_iter()
            .map(|other| (config.clone(), other));
        for (config, preprocessor) in configs.chain(others) {
            if let Ok(Some(spec)) = ImageSpec::read(&config, &preprocessor, None) {
                try_all(&spec);
                spec.of_several().iter().for_each(try_all);
            }
        }
    }
}

#[test]
fn files_of_kimis_authors_say_the_same_as_those_of_transformers() {
    let config = json!({"model_type": "kimi_k25"});
    let read = |file: Value| ImageSpec::read(&config, &file, None).unwrap().unwrap();
    let theirs = json!({"in_patch_limit": 4096, "patch_size": 16, "merge_kernel_size": 1, "patch_limit_on_one_side": 99});
    let ours =
        json!({"max_patches": 4096, "patch_size": 16, "merge_size": 1, "size": {"max_height": 99}});
    assert_eq!(read(json!({"media_proc_cfg": theirs})), read(ours));
    let fixed = json!({"media_proc_cfg": {"fixed_output_tokens": 100}});
    assert!(ImageSpec::read(&config, &fixed, None).is_err());
}

#[test]
fn the_newer_file_counts_and_errors_name_it() {
    let config = json!({"model_type": "gemma3", "mm_tokens_per_image": 256});
    let old = json!({"size": {"height": 896, "width": 896}});
    let new = json!({"image_processor": {"size": {"height": 448, "width": 448}}});
    let read = |old: &Value, new: Option<&Value>| ImageSpec::read(&config, old, new);
    let given = Size {
        height: 1,
        width: 1,
    };
    let side = |spec: Result<Option<ImageSpec>, SpecError>| {
        let plan = spec.unwrap().unwrap().plan(given, Detail::High).unwrap();
        plan.views[0].resized.height
    };
    assert_eq!(side(read(&old, None)), 896);
    assert_eq!(
        side(read(&old, Some(&json!({"image_seq_length": 256})))),
        896
    );
    assert_eq!(side(read(&old, Some(&new))), 448);
    assert_eq!(side(read(&Value::Null, Some(&new))), 448);
    let error = read(&Value::Null, Some(&json!({"image_processor": {}})));
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "processor_config.json has no usable `size`");
    let error = read(&Value::Null, None).unwrap_err().to_string();
    assert_eq!(error, "preprocessor_config.json has no usable `size`");
}
