"""Plots of the stories: each is a list of steps, each step a choice of sentences with fields in braces.

`A` is the hero, `B` the friend; `he`, `him`, `his` belong to the hero, `he2` and so on to the friend.
"""

OPENINGS = (
    "Once upon a time, there was a {kind} named {A}.",
    "Once upon a time, there was a {kind} called {A}, who lived in {home}.",
    "Once upon a time there lived a {kind} whose name was {A}.",
    "There once was a {kind} named {A}, who lived in {home}.",
    "{A} was a {kind} who lived in {home}.",
    "In {home} lived a {kind} named {A}.",
)
HABITS = (
    "{He} loved to {love}.",
    "Every day {he} liked to {love} near {place}.",
    "More than anything, {A} loved to {love}.",
    "{He} could {love} all day long.",
    "Everybody near {place} knew {him} well.",
)
FRIEND = "{His} best friend was a {kind2} named {B}."
ENDINGS = (
    "From that day on, {A} and {B} were the best of friends.",
    "That night {A} fell asleep with a smile.",
    "{A} never forgot that day.",
    "And so {A} learned that {moral}.",
    "{A} went home feeling very {feeling}.",
    "{A} and {B} laughed all the way home.",
    "Since then, {A} always remembers that {moral}.",
    "And they all lived happily ever after.",
    "The end.",
)

MEETS = (
    "On the way {he} met a {kind2} named {B}.",
    "Just then a {kind2} named {B} came along.",
    "Near {place} {he} saw {B}, a {kind2}.",
    "Soon {B} the {animal2} came to help.",
)

PLOTS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "lost toy": (
        "friends help each other",
        (
            ("{day}, {A} could not find {his} {thing}.", "{day}, {A} lost {his} {thing} near {place}."),
            (
                "{He} looked under the bed and behind the door, but it was not there.",
                "{He} searched everywhere, but the {toy} was gone.",
                "{A} felt sad and began to cry.",
            ),
            MEETS,
            ('"Why are you so sad?" asked {B}.', '"What is the matter?" asked {B}.'),
            ('"I have lost my {thing}," said {A}.', '"My {thing} is gone," said {A}.'),
            ('"Do not worry," said {B}.', '"I will help you," said {B}.', '"Let us look together," said {B}.'),
            (
                "They looked under every stone and behind every bush.",
                "They walked slowly along the path.",
                "Together they went to {place2}.",
            ),
            (
                "At last they found the {thing} in the tall grass.",
                "There it was, right behind a big stone!",
                "High up in a tree, {B} saw the {thing}.",
            ),
            ('"Thank you, {B}!" said {A}.', "{A} gave {B} a big hug."),
        ),
    ),
    "storm": (
        "it is good to be prepared",
        (
            ("{day}, dark clouds came over {place}.", "{day}, a big storm came to {place}."),
            ("The wind blew hard and the rain began to fall.", "The thunder was loud and the trees shook."),
            ("{A} was afraid and ran to find a dry place.", "{A} hid under a big leaf and shivered."),
            ("Then {he} heard a small voice.", "Then {he} heard somebody call for help."),
            ("It was {B}, a {kind2} who had lost the way.", "It was {B} the {animal2}, wet and cold."),
            ('"Come with me," said {A}.', '"You can stay with me," said {A}.', '"Take my hand," said {A}.'),
            ("They ran to {home2} and sat by the fire.", "They found a dry cave and waited together."),
            ("{A} shared {his} {treat}, and soon they were warm.", "They told stories until the rain stopped."),
            ("When the sun came out, they saw a rainbow.", "In the morning the sky was blue again."),
        ),
    ),
    "sharing": (
        "sharing makes everything better",
        (
            ("{day}, {A} made some {treat}.", "{day}, {A} found a basket full of {fruit}."),
            ("It smelled so good that {he} wanted to keep it all.", '"This is all for me," said {A}.'),
            MEETS,
            ('"I am so hungry," said {B}.', '"May I have a little bit?" asked {B}.'),
            ("At first {A} said no.", "{A} thought about it for a while."),
            ("Then {he} saw how thin and tired {B} was.", "Then {he} saw a tear on the face of {B}."),
            ('"Here, take half of it," said {A}.', '"Let us eat together," said {A}.'),
            ("They sat down in the grass and ate.", "It tasted better than ever before."),
            ('"You are very kind," said {B}.', "{B} smiled and sang a song for {him}."),
        ),
    ),
    "learning": (
        "practice makes perfect",
        (
            ("{day}, {A} wanted to learn how to {skill}.", "{day}, {A} saw {B} {skill} for the first time."),
            ("{He} tried and tried, but it did not work.", "{He} tried once and fell on {his} nose."),
            ('"I will never learn it," said {A}.', '"It is too hard for me," said {A}.'),
            ('"Nobody can do it on the first day," said {B}.', '"Try it again, slowly," said {B}.'),
            ("So {A} practised every morning.", "{B} showed {him} how to do it, step by step."),
            ("After three days it was a little better.", "After a week {he} did not fall any more."),
            ("One morning, {A} could finally {skill}.", "Suddenly it worked, and {A} could {skill}!"),
            ("Everyone clapped and cheered.", '"I knew you could do it!" said {B}.'),
        ),
    ),
    "treasure": (
        "a good friend is the greatest treasure",
        (
            ("{day}, {A} found an old map near {place}.", "{day}, {A} found a map inside {his} {thing}."),
            ("It showed the way to a treasure at {place2}.", "A red cross was drawn on it, close to {place2}."),
            ("{A} told {B}, a {kind2}, about it.", "{A} asked {B} the {animal2} to come along."),
            ('"Let us go and find it!" said {B}.', '"I will carry the lamp," said {B}.'),
            ("They walked over the hill and crossed a cold stream.", "The way was long, and their feet hurt."),
            ("At {place2} they began to dig.", "Under an old tree they started to dig."),
            ("Soon they found a small box.", "After an hour they found a wooden chest."),
            ("Inside was a {colour} stone that shone like a star.", "Inside there were {fruit} and a {thing2}."),
            ("They shared it and were very happy.", '"One half for you and one half for me," said {A}.'),
        ),
    ),
    "helping home": (
        "a small help can be a big help",
        (
            ("{day}, {A} saw a {young} sitting alone at {place}.", "{day}, {A} met a lost {young} near {place}."),
            ('"I cannot find my mother," said the {young}.', '"I want to go home," cried the {young}.'),
            ('"I will take you home," said {A}.', '"Do not cry, we will find her," said {A}.'),
            ("{A} asked {B} the {animal2} for help.", "They asked {B}, a {kind2}, who knew every path."),
            ('"I saw her at {place2} this morning," said {B}.', '"Go to {place2} and look there," said {B}.'),
            ("So they walked all the way to {place2}.", "They followed the river until they came to {place2}."),
            ("There the mother was waiting, full of worry.", "The mother ran to them with open arms."),
            ('"Thank you for bringing my child home," she said.', "She thanked them and gave them some {treat}."),
        ),
    ),
    "party": (
        "nobody is ever forgotten by true friends",
        (
            ("{day}, it was {A}'s birthday.", "{day}, {A} woke up early because it was {his} birthday."),
            ("But nobody said anything about it.", "{He} waited for {his} friends, but nobody came."),
            ("{A} walked to {place} and sat down alone.", '"They have forgotten me," said {A}.'),
            ("Then {he} heard music from {place2}.", "Then {B} the {animal2} came and took {his} hand."),
            ("{He} went to see what it was.", '"Close your eyes and come with me," said {B}.'),
            ('"Surprise!" shouted all the friends.', "There stood all {his} friends with a big cake."),
            ("{B} gave {him} a {thing}.", "There were {fruit}, {treat} and a {thing} as a present."),
            ("They danced and sang until the moon came up.", "They played games all afternoon."),
        ),
    ),
    "river": (
        "two can do what one cannot",
        (
            ("{day}, {A} wanted to cross the water to reach {place}.", "{day}, {A} had to bring a {thing} to {place}."),
            ("But the bridge was broken.", "But a big tree lay across the path."),
            ("{A} pushed and pulled, but {he} was not strong enough.", "{He} did not know what to do."),
            MEETS,
            ('"May I help you?" asked {B}.', '"Two are stronger than one," said {B}.'),
            ("{A} took one end and {B} took the other.", "They counted to three and pulled together."),
            ("Step by step, the work got done.", "It was hard work, but they did not give up."),
            ("Soon the way was free.", "At noon they stood on the other side."),
            ('"We did it!" said {A}.', '"What a good team we are!" said {B}.'),
        ),
    ),
    "garden": (
        "good things need time",
        (
            ("{day}, {A} planted a seed beside {place}.", "{day}, {B} the {animal2} gave {A} a small seed."),
            ('"It will grow if you wait," said {B}.', '"Give it water every day," said {B}.'),
            ("Every morning {A} came with a can of water.", "{A} watered it and sang to it."),
            ("For a long time nothing happened.", "Days went by, and the ground stayed bare."),
            ('"Maybe it is broken," said {A}.', "{A} wanted to give up."),
            ("But then a tiny green leaf came out of the ground.", "Then, after the rain, a small leaf appeared."),
            ("It grew and grew until it was as tall as {A}.", "In summer it was full of {colour} flowers."),
            ("In the end it was full of {fruit}.", "There were enough {fruit} for everyone."),
        ),
    ),
    "night": (
        "the dark is not so bad with a friend",
        (
            ("{day}, {A} stayed at {place} until it was dark.", "{day}, the lamp in {A}'s room went out."),
            ("{He} heard a strange noise: tap, tap, tap.", "Something moved behind the trees."),
            ('"Who is there?" asked {A} with a small voice.', "{A} held {his} {thing} very tightly."),
            ("Slowly the noise came closer.", "Two bright eyes looked at {him}."),
            ("But it was only {B}, a {kind2}.", "But it was only {B} the {animal2} with a lantern."),
            ('"I was afraid too," said {B}.', '"Did I scare you?" asked {B}.'),
            ("They both began to laugh.", "They looked at each other and laughed."),
            ("They sat down and counted the stars.", "Hand in hand they walked home under the moon."),
        ),
    ),
    "race": (
        "being kind is better than being first",
        (
            ("{day}, there was a great race from {place} to {place2}.", "{day}, {A} and {B} had a race to {place2}."),
            ("{A} was fast and wanted to win.", '"I will be the first," said {A}.'),
            ("At the start {he} ran ahead of everyone.", "{A} ran like the wind."),
            ("Halfway, {B} the {animal2} fell and hurt a foot.", "Then {he} heard {B} cry out behind {him}."),
            ("{A} stopped and looked back.", "{A} could see the end, but {he} turned around."),
            ('"Lean on me," said {A}.', '"We will go on together," said {A}.'),
            ("Slowly they walked to the end, side by side.", "They came in last, but they came in together."),
            ("Everybody clapped for both of them.", "The owl gave them both a {colour} ribbon."),
        ),
    ),
    "lie": (
        "it is best to tell the truth",
        (
            ("{day}, {A} broke {B}'s {thing} by accident.", "{day}, {A} ate all of {B}'s {treat}."),
            ('"It was not me," said {A}.', "{He} was afraid and told nobody."),
            ("{B} was very sad about it.", "{B} the {animal2} looked for an answer all day."),
            ("{A} could not sleep that night.", "{A} felt worse and worse."),
            ("In the morning {he} went to see {B}.", "So {he} walked to {place} to meet {B}."),
            ('"I did it, and I am sorry," said {A}.', '"I must tell you the truth," said {A}.'),
            ('"Thank you for telling me," said {B}.', '"Now I am not sad any more," said {B}.'),
            ("Together they made everything good again.", "{A} helped {him2} all afternoon."),
        ),
    ),
    "snow": (
        "a warm heart melts every fear",
        (
            ("{day}, {A} saw snow for the first time.", "{day}, soft white snow fell on {place}."),
            ("Everything was white and very quiet.", "{A} jumped into it and laughed."),
            ("But {B} stayed by the window and looked sad.", "But {B} the {animal2} did not want to come out."),
            ('"I am afraid to slip and fall," said {B}.', '"It is too cold for me," said {B}.'),
            ("So {A} gave {B} a {thing} and some {treat}.", "{A} came back with a {thing} for {B}."),
            ('"I will hold your hand," said {A}.', '"We will go slowly," said {A}.'),
            ("Together they built a snowman near {place}.", "Step by step they walked to {place}."),
            ("They gave the snowman a hat and a carrot nose.", "Soon {B} was laughing louder than anyone."),
            ('"Snow is wonderful!" said {B}.', '"Let us do this again tomorrow," said {B}.'),
        ),
    ),
    "new neighbour": (
        "a friendly word opens every door",
        (
            ("{day}, somebody new moved to {place}.", "{day}, {A} saw a light in the empty house near {place}."),
            ("It was {B}, a {kind2} who knew nobody there.", "There lived {B}, a {kind2}, all alone."),
            ("The others were shy and kept away.", "Nobody had said hello yet."),
            ("{A} thought about it and had an idea.", '"That must be lonely," thought {A}.'),
            ("{He} took some {treat} and knocked on the door.", "{He} picked some {fruit} and went to visit {B}."),
            ('"Welcome! My name is {A}," said {A}.', '"Would you like to play?" asked {A}.'),
            ('"Yes, please!" said {B} with a big smile.', '"You are the first to visit me," said {B}.'),
            ("Soon all the others came to say hello.", "That afternoon they played at {place2}."),
        ),
    ),
    "bell": (
        "small ones can do great things",
        (
            ("{day}, smoke rose from {place}.", "{day}, the water rose higher and higher at {place}."),
            ("Nobody saw it but {A}.", "Everyone was asleep, only {A} was awake."),
            ('"I am too small to help," thought {A}.', "{A} was small, and {his} voice was quiet."),
            ("Then {he} remembered the old bell at {place2}.", "But {he} knew that there was a bell at {place2}."),
            ("{He} ran as fast as {he} could.", "{He} did not stop until {he} was there."),
            ("{A} pulled the rope with all {his} strength.", "Again and again {A} rang the bell."),
            ("Everybody woke up and came running.", "{B} was the first to hear it and called the others."),
            ("With many hands they made everything safe again.", "Together they saved {place}."),
            ('"You are a hero!" said {B}.', '"Thank you for waking us," said {B}.'),
        ),
    ),
}

SKILLS = "swim|dance|fly a kite|ride a bicycle|play the drum|climb a tree|skate on the ice|whistle|juggle".split("|")
