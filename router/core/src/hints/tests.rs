use std::sync::Arc;

use super::*;

/// The tokens 100, 101, ...
fn predicted(count: u32) -> Arc<Prediction> {
    Arc::new(Prediction::new((100..100 + count).collect()))
}

fn numbers(count: u32) -> Follower {
    Follower::new(predicted(count))
}

/// What is told where there is a prediction alone.
fn next(hints: &mut Hints, ahead: usize) -> Option<Vec<u32>> {
    hints.next((ahead, 0), &[], || None)
}

fn counts(follower: &Follower) -> (u32, u32) {
    let counts = follower.counts();
    (counts.accepted, counts.rejected)
}

fn hints(count: u32) -> Hints {
    Hints::new(Some(predicted(count)), &[])
}

#[test]
fn a_prediction_is_told_piece_by_piece_before_it_is_used_up() {
    let mut hints = hints(150);
    assert_eq!(next(&mut hints, 16), Some((100..164).collect()));
    assert_eq!(next(&mut hints, 16), None);
    hints.push(100..148);
    assert_eq!(next(&mut hints, 16), None, "16 are left");
    hints.push(148..149);
    assert_eq!(next(&mut hints, 16), Some((149..213).collect()));
    hints.push(149..213);
    assert_eq!(next(&mut hints, 16), Some((213..250).collect()));
    hints.push(213..240);
    assert!(hints.fits(0, &[]));
    assert_eq!(next(&mut hints, 16), None, "all is told");
    hints.push(240..250);
    assert!(!hints.fits(0, &[]));
    assert_eq!(next(&mut hints, 16), None);
}

#[test]
fn another_token_ends_a_hint_and_eight_equal_ones_begin_the_next() {
    let mut hints = hints(100);
    assert!(next(&mut hints, 16).is_some());
    hints.push([100, 101, 7].into_iter());
    assert!(!hints.fits(0, &[]));
    assert_eq!(next(&mut hints, 16), None);
    hints.push(150..157);
    assert_eq!(next(&mut hints, 16), None, "seven are not enough");
    hints.push(157..158);
    assert!(hints.fits(0, &[]));
    assert_eq!(next(&mut hints, 16), Some((158..200).collect()));
}

#[test]
fn three_tokens_are_enough_near_the_place_that_was_left() {
    let after = |tokens: &[u32]| {
        let mut follower = numbers(100);
        (100..120).for_each(|id| follower.push(id));
        tokens.iter().for_each(|&id| follower.push(id));
        follower.rest().first().copied()
    };
    // One was replaced by another, by two, by none, and three were new.
    assert_eq!(after(&[1, 121, 122, 123]), Some(124));
    assert_eq!(after(&[1, 2, 121, 122, 123]), Some(124));
    assert_eq!(after(&[121, 122, 123]), Some(124));
    assert_eq!(after(&[1, 2, 3, 120, 121, 122]), Some(123));
    assert_eq!(after(&[1, 121, 122]), None, "two are not enough");
    assert_eq!(after(&[1, 160, 161, 162]), None, "that is far");
    assert_eq!(after(&[1, 110, 111, 112]), None, "that is in front of it");
    // Of two places the one that is nearer to where it should be.
    let text = [
        &[9; 10][..],
        &[1, 2, 3, 50],
        &[8; 10],
        &[1, 2, 3, 60],
        &[8; 5],
    ]
    .concat();
    let mut follower = Follower::new(Arc::new(Prediction::new(text)));
    let answer = [&[9; 9][..], &[7; 12], &[1, 2, 3]].concat();
    answer.iter().for_each(|&id| follower.push(id));
    assert_eq!(follower.rest()[0], 60);
}

#[test]
fn a_request_that_paused_is_told_from_where_it_stands() {
    let generated: Vec<u32> = (100..130).collect();
    let mut hints = Hints::new(Some(predicted(40)), &generated);
    assert_eq!(next(&mut hints, 16), Some((130..140).collect()));
    let mut astray = Hints::new(Some(predicted(40)), &[100, 1, 2]);
    assert_eq!(next(&mut astray, 16), None);
}

#[test]
fn the_place_is_found_again_in_front_of_where_it_was_lost_before_behind_it() {
    let run: Vec<u32> = (1..9).collect();
    let text = [&run[..], &[50, 51], &run, &[60, 61], &run, &[70, 71]].concat();
    let mut follower = Follower::new(Arc::new(Prediction::new(text)));
    let after = |follower: &mut Follower, left: &[u32]| {
        left.iter().chain(&run).for_each(|&id| follower.push(id));
        follower.rest().to_vec()
    };
    // It is lost behind the first run, between the second and the third, and behind all.
    assert_eq!(after(&mut follower, &[1, 2, 3, 99])[..2], [50, 51]);
    follower.push(50);
    assert_eq!(after(&mut follower, &[99])[..2], [60, 61]);
    follower.push(60);
    assert_eq!(after(&mut follower, &[99])[..2], [70, 71]);
    follower.push(70);
    follower.push(71);
    assert!(follower.rest().is_empty());
    assert_eq!(after(&mut follower, &[99])[..2], [70, 71]);
}

#[test]
fn tokens_of_a_prediction_that_an_answer_has_are_counted() {
    let mut follower = numbers(100);
    (100..110).for_each(|id| follower.push(id));
    assert_eq!(counts(&follower), (10, 90));
    // Two tokens were replaced by three.
    [1, 2, 3].into_iter().for_each(|id| follower.push(id));
    assert_eq!(counts(&follower), (10, 90));
    (112..125).for_each(|id| follower.push(id));
    assert_eq!(counts(&follower), (23, 77));
    // One was left out: the eight that find the place again have others of before among them.
    (126..140).for_each(|id| follower.push(id));
    assert_eq!(counts(&follower), (37, 63));
}

#[test]
fn a_prediction_may_be_of_one_token_again_and_again_or_shorter_than_a_match() {
    let same = Arc::new(Prediction::new(vec![5; 20_000]));
    let mut follower = Follower::new(same);
    (0..10_000).for_each(|_| follower.push(5));
    follower.push(6);
    (0..8).for_each(|_| follower.push(5));
    assert!(!follower.rest().is_empty());
    let mut short = numbers(3);
    [100, 9, 100, 101, 102]
        .into_iter()
        .for_each(|id| short.push(id));
    assert!(short.rest().is_empty());
    assert_eq!(counts(&short), (3, 0));
}

#[test]
fn what_is_known_from_elsewhere_is_told_where_no_prediction_is_followed() {
    let earlier: Vec<u32> = (500..520).collect();
    let mut hints = Hints::new(None, &[]);
    assert!(!hints.fits(0, &[]));
    assert_eq!(hints.next((16, 0), &[], || None), None);
    assert_eq!(
        hints.next((16, 0), &[], || Some(&earlier)),
        Some(earlier.clone())
    );
    assert!(hints.fits(0, &[]));
    hints.push(500..503);
    assert_eq!(
        hints.next((16, 0), &[], || panic!("there are enough")),
        None
    );
    hints.push(503..505);
    assert_eq!(
        hints.next((16, 0), &[], || Some(&earlier[5..])),
        None,
        "it knows no more"
    );
    hints.push([9].into_iter());
    assert!(!hints.fits(0, &[]));
    let mut both = Hints::new(Some(predicted(40)), &[]);
    let told = both.next((16, 0), &[], || panic!("the prediction comes first"));
    assert_eq!(told, Some((100..140).collect()));
    both.push([1].into_iter());
    assert_eq!(
        both.next((16, 0), &[], || Some(&earlier)),
        Some(earlier.clone())
    );
}

#[test]
fn what_is_forced_comes_first_but_a_prediction_that_says_the_same_goes_on() {
    let mut hints = hints(40);
    let forced = [100, 101, 102];
    assert!(hints.fits(39, &forced) && !hints.fits(40, &forced));
    let told = hints.next((16, 0), &forced, || panic!("there is a prediction"));
    assert_eq!(told, Some((100..140).collect()));
    // It says something else here.
    let mut other = self::hints(40);
    let forced = [7, 8, 9];
    assert_eq!(other.next((16, 0), &forced, || None), Some(forced.to_vec()));
    let mut alone = Hints::new(None, &[]);
    assert!(!alone.fits(0, &[]) && alone.fits(2, &forced) && !alone.fits(3, &forced));
    assert_eq!(
        alone.next((16, 3), &forced, || None),
        None,
        "they come anyway"
    );
    assert_eq!(alone.next((16, 2), &forced, || None), Some(forced.to_vec()));
}

#[test]
fn what_the_shards_draft_follows_from_what_they_were_told() {
    let mut hints = hints(40);
    let behind = |hints: &Hints, ids: &[u32]| {
        let rest = hints.drafts_behind(ids.iter().copied());
        (rest.len(), rest.first().copied())
    };
    assert_eq!(behind(&hints, &[]), (0, None), "nobody has told them");
    next(&mut hints, 16);
    assert_eq!(behind(&hints, &[]), (40, Some(100)));
    assert_eq!(behind(&hints, &[100, 101]), (38, Some(102)));
    assert_eq!(behind(&hints, &[100, 1]), (0, None));
    hints.push(100..130);
    assert_eq!(behind(&hints, &[130]), (9, Some(131)));
    assert_eq!(behind(&hints, &(130..140).collect::<Vec<_>>()), (0, None));
    assert_eq!(behind(&hints, &(130..141).collect::<Vec<_>>()), (0, None));
}
